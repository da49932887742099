"""Write the page on the format of files, from the fields of records: `python docs/design/format.py`."""

import re
from pathlib import Path
from typing import Any

from baechi.records import (
    Candidate,
    Cluster,
    Device,
    Host,
    HostCosts,
    Link,
    Plan,
    Span,
    Timeline,
    files,
    schema,
)
from baechi.records.edge_costs import EdgeCosts
from baechi.records.graph_notes import GraphNotes
from baechi.records.layer_costs import LayerCosts
from baechi.records.pipeline import OrderTried, Pipeline, Task
from baechi.records.replicas import Replicas, ReplicasTried

FILE = Path(__file__).with_name("format.md")

SECTIONS: tuple[tuple[str, str, Any], ...] = (
    (
        "Graphs",
        "A graph has `graph` (notes), `nodes` (each `[name, attributes]`, in code order) and `edges` (each "
        "`[source, target, attributes]`). Attributes may be missing or null; unknown ones are kept. Notes:",
        GraphNotes,
    ),
    ("", "Attributes of a node:", LayerCosts),
    ("", "Attributes of an edge:", EdgeCosts),
    ("Clusters", "", Cluster),
    ("", "A device:", Device),
    ("", "A link:", Link),
    ("", "Host costs:", HostCosts),
    ("", "A host:", Host),
    ("Plans", "The order and the devices are those of the plan's own graph and cluster.", Plan),
    ("", "A candidate is a list of these values:", Candidate),
    ("Pipelines", "", Pipeline),
    ("", "A task is a list of these values:", Task),
    ("", "An order that was tried is a list of these values:", OrderTried),
    ("Replicas", "", Replicas),
    ("", "A number that was tried is a list of these values:", ReplicasTried),
    ("Timelines", "", Timeline),
    ("", "A span is a list of these values:", Span),
)

HEAD = f"""# Files

`save` writes a graph, cluster, plan, pipeline or timeline as JSON; `load` reads it. This page is made of the
fields that the classes declare (`python docs/design/format.py`), as is all that reads, checks and writes.

A file is one object: `"baechi"` says of which kind it is, `"schema"` is {files.SCHEMA}, and the rest are the
fields below. It is read by these rules:

- **All or nothing.** A value of another type or range, a name of nothing, a node, edge, device or key that is
  there twice: the file is refused by a `RecordError`, which lists every fault with its place, such as
  `graph.nodes[3].weights[0]`.
- **Limits.** At most {files.MOST_BYTES // 2**20} MiB, {files.DEEPEST} objects and lists in each other, 4,300
  digits a number; names have at most {schema.LONGEST:,} characters, numbers are at most {schema.MOST:g}. Only
  regular files are read: no pipe is waited for.
- **Nothing is lost.** A file is written beside the old one, onto the disk, and then put in its place, with
  its permissions. A process that is killed, or a disk that is full, leaves the old one. Reports of the
  command line and what is kept of measured links are written so, too.
- **Names are shown as they are**, but for characters that a terminal would obey: `\\x1b` is an escape.
- Files of older versions are read, which lack fields with a value below "if missing".
"""


def text() -> str:
    """The page."""
    parts = [HEAD]
    for title, words, cls in SECTIONS:
        parts += [f"## {title}\n"] if title else []
        parts += [f"{words}\n"] if words else []
        parts += ["| field | in a file | if missing | meaning |\n|---|---|---|---|"]
        later = getattr(cls, "later", None)
        for name, words_of, missing, meaning in schema.documented(cls):
            may_miss = missing if later is None or name in later else ""
            cells = [f"`{name}`", words_of, f"`{may_miss}`" if may_miss else "", meaning]
            parts[-1] += f"\n| {' | '.join([re.sub(r'[|]', '/', cell) for cell in cells])} |"
        parts[-1] += "\n"
    return "\n".join(parts)


if __name__ == "__main__":
    files.write(FILE, text())
