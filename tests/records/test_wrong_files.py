"""Files that hold no record, or half of one, are refused by a RecordError that says so."""

import copy
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from place.graphs import chain, cluster_of

from baechi.errors import RecordError
from baechi.records import Candidate, Cluster, Device, LayerGraph, Plan, Timeline, files

GRAPH = chain(2, training=True)
PLAN = Plan(GRAPH, cluster_of(9, 9), dict.fromkeys(GRAPH.placed(), "d0"))
RECORDS = [PLAN, PLAN.timeline, GRAPH, PLAN.cluster]
OTHERS: list[Any] = [None, [], {}, "x", -1, 1.5, True, [1], {"a": 1}]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in JSON data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*above, key)
        yield from places(below, (*above, key))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.record_kind)
def test_any_value_may_be_wrong(record: Plan | Timeline | LayerGraph | Cluster) -> None:
    """Whatever is missing or of another kind: the file is read, or refused in the one way that is known."""
    body = json.loads(record.to_json())
    refused = 0
    for place in places(body):
        for other in OTHERS:
            wrong = copy.deepcopy(body)
            table = wrong
            for key in place[:-1]:
                table = table[key]
            table[place[-1]] = other
            try:
                type(record).from_json(json.dumps(wrong))
            except RecordError:
                refused += 1
    assert refused > 50


def test_missing(tmp_path: Path) -> None:
    """What is missing is named, with the file."""
    body = json.loads(PLAN.to_json())
    del body["graph"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(body))
    with pytest.raises(RecordError, match=r"plan\.json is no whole baechi plan: it misses 'graph'"):
        Plan.load(file)


def test_cut_short_and_no_text(tmp_path: Path) -> None:
    """Half a file, and a picture."""
    file = tmp_path / "plan.json"
    file.write_text(PLAN.to_json()[:100])
    with pytest.raises(RecordError, match="is the file cut short"):
        Plan.load(file)
    file.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(RecordError, match="is no text"):
        Plan.load(file)


def test_timelines_from_before() -> None:
    """A timeline that was written without sizes of transfers and bytes over time is read."""
    body = json.loads(PLAN.timeline.to_json())
    del body["live_bytes"]
    body["spans"] = [span[:6] for span in body["spans"]]
    read = Timeline.from_json(json.dumps(body))
    assert len(read.spans) == len(PLAN.timeline.spans) and not read.live_bytes


def test_faults_are_short() -> None:
    """Of many devices, faults and nodes the first ones are named: small files make no large errors."""
    names = tuple([f"{'d' * 1000}{number}" for number in range(200)])
    cluster = Cluster(tuple([Device(name, memory_bytes=1) for name in names]))
    graph = chain(500)
    with pytest.raises(RecordError, match="and 192 more") as raised:
        Plan(graph, cluster, dict.fromkeys(graph.placed(), "x"), candidates=(Candidate("a", 1, {"y": 1}),))
    assert sum(map(len, raised.value.faults)) < 50_000 and "and 485 more like these" in raised.value.faults
    timeline = Timeline((), 1, dict.fromkeys([f"y{number}" for number in range(500)], 1))
    assert len("".join(timeline.strangers(names))) < 50_000
    ring = LayerGraph()
    ring.add_edges_from(zip(names, names[1:] + names[:1], strict=True))
    with pytest.raises(RecordError, match=r"it has a cycle.* > and 192 more") as raised:
        ring.check()
    assert len(str(raised.value)) < 1000


def test_a_long_key_is_not_copied() -> None:
    """What lies below a key does not each hold the whole of it."""
    text = f'{{"{"k" * 1_000_000}": [{", ".join(["[]"] * 1000)}]}}'
    tracemalloc.start()
    files.parsed(text, "text")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    with pytest.raises(RecordError, match=r"malformed: a\[1\]\.b has the key 'c' twice"):
        files.parsed('{"a": [{}, {"b": {"c": 1, "c": 2}}]}', "text")
