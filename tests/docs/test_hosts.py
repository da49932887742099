"""The tests that docs/hosts.md names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_named_tests_exist() -> None:
    text = (ROOT / "docs" / "hosts.md").read_text()
    table = text.partition("## What users of other pipelines report")[2].partition("\n## ")[0]
    code = "\n".join(path.read_text() for path in (ROOT / "tests" / "run" / "ranks").glob("test_*.py"))
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 15
    for row in rows:
        named = re.findall(r"`(test_\w+|tests/[\w/.]+)`", row.rpartition(" | ")[2])
        assert named or row.endswith("| not here |"), row
        for name in named:
            assert (ROOT / name).exists() if "/" in name else f"def {name}(" in code, name
