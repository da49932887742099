"""Every value of a file is checked by what its field declares, and each fault says where it is."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from baechi.errors import PlanError, RecordError
from baechi.records import Cluster, Device, LayerGraph, Plan, Span, Timeline, schema
from baechi.records.abstract import AbstractRecord
from baechi.records.pipeline import Pipeline

from .mutations import originals

READING: dict[str, type[AbstractRecord]] = {
    "graph": LayerGraph, "cluster": Cluster, "plan": Plan, "pipeline": Pipeline, "timeline": Timeline,
}  # fmt: skip
WRONG: list[tuple[str, list[Any], Any, str]] = [
    ("graph", ["nodes", 2, 1, "weights"], [5], r"nodes\[2\]\.weights\[0\]: it is 5, not text"),
    ("graph", ["nodes", 2, 1, "returned"], 5, r"nodes\[2\]\.returned: it is 5"),
    ("graph", ["nodes", 2, 1, "follows"], -1, r"nodes\[2\]\.follows: it is -1"),
    ("graph", ["nodes", 2, 1, "follows"], "zz", r"nodes\[2\]\.follows: it is 'zz', and there is no"),
    ("graph", ["nodes", 2, 1, "runs_again"], {"zz": 1}, r"nodes\[2\]\.runs_again: it is 'zz'"),
    ("graph", ["nodes", 2, 1, "param_bytes"], True, r"nodes\[2\]\.param_bytes: it is True"),
    ("graph", ["nodes", 2, 0], "a", r"nodes\[2\]: it is a second node 'a'"),
    ("graph", ["nodes", 2, 0], "n" * 5000, r"nodes\[2\]: it is 'n+\.\.\.n+', not text of 1 to 2,000"),
    ("graph", ["edges", 1, 2, "tensor"], [[]], r"edges\[1\]\.tensor: it is \[\[\]\]"),
    ("graph", ["edges", 1, 1], "zz", r"edges\[1\]: there is no node 'zz'"),
    ("graph", ["edges", 2, 1], "b", r"edges\[2\]: it is a second edge 'a' > 'b'"),
    ("graph", ["edges", 1, 0], "e", r"graph: it has a cycle"),
    ("graph", ["graph", "training"], "yes", r"graph\.training: it is 'yes', not true or false"),
    ("cluster", ["devices", 0, "kind"], [], r"devices\[0\]\.kind: it is \[\], not text"),
    ("cluster", ["devices", 0, "name"], "a>b", r"devices\[0\]\.name: it is 'a>b', not text .* without '>'"),
    ("cluster", ["devices", 0, "name"], "", r"devices\[0\]\.name: it is ''"),
    ("cluster", ["devices", 0, "memory_bytes"], 10**400, r"devices\[0\]\.memory_bytes: it is 1000"),
    ("cluster", ["devices", 0, "speed"], 1e-300, r"devices\[0\]\.speed: it is 1e-300"),
    ("cluster", ["emulated"], 1, r"emulated: it is 1, not true or false"),
    ("cluster", ["links", 0, 0], "zz", r"a link names 'zz', no device of it"),
    ("cluster", ["host", "layer_call_s"], -1, r"host\.layer_call_s: it is -1"),
    ("plan", ["graph", "nodes", 2, 1, "weights"], [5], r"graph\.nodes\[2\]\.weights\[0\]: it is 5"),
    ("plan", ["device_of", "a"], "d7", "layer a is on 'd7'"),
    ("plan", ["order", 1], 5, r"order\[1\]: it is 5"),
    ("plan", ["candidates", 0, 1], -1.0, r"candidates\[0\]\[1\]: it is -1.0"),
    ("plan", ["candidates", 0, 2], {"d7": 1}, "candidate single has a peak of 'd7'"),
    ("plan", ["dry", "peak_bytes"], {"d7": 1}, "its timeline names 'd7'"),
    ("pipeline", ["tried", 0, 4], 1, r"tried\[0\]\[4\]: it is 1, not true or false"),
    ("pipeline", ["tried", 0, 3], {"d7": 1}, "names 'd7'"),
    ("pipeline", ["microbatches"], 100_000, "100,000 microbatches are"),
    ("pipeline", ["order", 0, 2], -1, r"order\[0\]\[2\]: it is -1"),
    ("timeline", ["spans", 0, 4], "late", r"spans\[0\]\[4\]: it is 'late'"),
    ("timeline", ["spans", 0, 4], float("nan"), r"spans\[0\]\[4\]: it is nan"),
    ("timeline", ["peak_bytes", "d0"], "all", r"peak_bytes\['d0'\]: it is 'all'"),
    ("timeline", ["counters"], [], r"counters: it is \[\], not an object"),
    ("timeline", ["spans", 0, 2], "a>b>c", "no device or, for a transfer"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "place", "value", "said"), WRONG)
def test_where(kind: str, place: list[Any], value: Any, said: str, tmp_path: Path) -> None:
    """The file and the place in it are named; the error survives pickling."""
    body = json.loads(originals()[kind])
    if kind == "pipeline":
        body["tried"] = [["1f1b", 9.0, {}, {"d0": 1}, True]]
    table = body
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    (tmp_path / "file.json").write_text(json.dumps(body))
    with pytest.raises(RecordError, match=said) as raised:
        READING[kind].load(tmp_path / "file.json")
    assert str(raised.value).startswith(f"{tmp_path / 'file.json'} is no baechi {kind}")
    assert pickle.loads(pickle.dumps(raised.value)).faults == raised.value.faults


@pytest.mark.parametrize("kind", READING)
def test_a_key_twice_and_too_deep(kind: str) -> None:
    """In parts of the file, too, that nobody reads."""
    text = originals()[kind]
    for more in ('"about": {"x": {"a": 1, "a": 2}}', '"schema": 1', f'"about": {"[" * 40}{"]" * 40}'):
        with pytest.raises(RecordError, match=r"twice|deep"):
            READING[kind].from_json(text.replace("{", f"{{{more}, ", 1))
    for much in ("", "5", "null", '"x"', "NaN", "[]", "{}", "[" * 10**5, "9" * 5000, f'{{"a":{"9" * 5000}}}'):
        with pytest.raises(RecordError):
            READING[kind].from_json(much)
    assert READING[kind].from_json(text.replace("{", '{"about": "known to nobody", ', 1)).to_json() == text


def test_as_built_as_read() -> None:
    """Records that are built in a program keep the same rules."""
    for wrong in ({"name": ""}, {"name": "a>b"}, {"name": "n" * 5000}, {"kind": []}, {"memory_bytes": -1}):
        with pytest.raises(RecordError, match="is malformed"):
            Device(**{"name": "d", **wrong})  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="at most 1,024"):
        Cluster(tuple([Device(f"d{number}") for number in range(1025)]))
    with pytest.raises(ValueError, match="at most 1,024"):
        Cluster.parse("9999999999xA100-80GB")
    with pytest.raises(RecordError, match="memory of d0 is given twice"):
        Cluster((Device("d0", memory_bytes=5),)).with_memory({0: 1, "d0": 2})


def test_errors_show_names() -> None:
    """A terminal obeys nothing that stands in a name."""
    plan = Plan.from_json(originals()["plan"])
    with pytest.raises(PlanError) as raised:
        Plan(plan.graph, plan.cluster, {**plan.device_of, "a": "\x1b[2J\r", "\x07\n": "d0"})
    assert "\x1b" not in str(raised.value) and "\\x1b[2J\\r" in str(raised.value)
    assert all(line.isprintable() for line in str(raised.value).split("\n"))


def test_every_field_is_written_read_and_documented() -> None:
    """What a record is read from has each field of its declaration, with a meaning."""
    for kind, cls in READING.items():
        body = json.loads(originals()[kind])
        rows = schema.documented(cls) if cls is not LayerGraph else []
        assert [name for name, *_ in rows if name not in body] == []
        assert all(words and meaning for _, words, _, meaning in rows)
        again = cls.from_body(copy.deepcopy(body))
        assert json.loads(again.to_json()) == body
    assert {name for name, *_ in schema.documented(Span)} == set(Span.__slots__)
