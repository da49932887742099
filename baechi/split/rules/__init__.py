"""Rules: which layers can be split, and what their tiles compute; one file for each kind.

In:    a layer's class, or its name; a rule's file is imported when the first class is looked for.
Out:   `SplitRule`s in the table of `baechi.split.dimension`.
Start: `layers`.
"""
