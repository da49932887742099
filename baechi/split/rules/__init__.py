"""Rules: which layers can be split, and what their shards compute; one file for each kind.

In:    nothing; these files are imported when the first class is looked for.
Out:   `SplitRule`s by class (`RULES`) or by the ending of its name (`FAMILIES`), for `baechi.split.table`.
Start: `layers`.
"""
