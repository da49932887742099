"""Files that hold no record, or half of one, are refused by a RecordError that says so."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from place.graphs import chain, cluster_of

from baechi.errors import RecordError
from baechi.records import Cluster, LayerGraph, Plan, Timeline

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
