"""Records whose files were changed, at random by a seed, and what is done with those that are read.

    PYTHONPATH=tests python -m records.mutations 0 20000

runs many, and prints what went wrong, each kind once.
"""

import copy
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from place.graphs import cluster_of, graph_of
from safetensors.torch import save_file
from time_limit import limited

import baechi
from baechi import report
from baechi.errors import BaechiError
from baechi.records import Candidate, Cluster, HostCosts, LayerGraph, Link, Plan, Timeline
from baechi.records.abstract import AbstractRecord
from baechi.records.pipeline import Pipeline
from baechi.report.facts import Facts
from baechi.run.weights.checkpoint import Checkpoint
from baechi.simulate.pipeline import ordered

SECONDS = 20
KINDS = ("graph", "split graph", "cluster", "plan", "pipeline", "timeline", "index")
OTHERS: list[Any] = [
    None, [], {}, "x", "", -1, 0, 1.5, True, False, [1], {"a": 1}, [[]], -0.0, 1e308, 1e-308, 5e-324, 1e25,
    2**63,
    2**64, 10**40, "nothing", "\x1b[31m\x07", "a>b", "d0>d1", ">", "host", "cpu:0", "a\nb", "\ud800",
    "\u202e",
    "n" * 5000, "../x", "/etc/passwd", ".", "\0", "NaN", "d0", "b", 10**9, [0] * 3, {"": 0}, "forward",
    "input",
]  # fmt: skip
RAW = ["NaN", "Infinity", "-Infinity", "9" * 400, "9" * 5000, "1e999", "-1e999", "[" * 2000 + "]" * 2000,
       '{"a":' * 200 + "1" + "}" * 200, '{"a": 1, "a": 2}', "1" + "0" * 300 + ".0"]  # fmt: skip


@cache
def originals() -> dict[str, str]:
    """The text of a record of each kind, with every attribute somewhere."""
    layer = {
        "module": "b", "type": "Linear", "whole_because": "so", "forward_s": {"cpu": 1.0, "L4": 2.0},
        "backward_s": {"cpu": 2.0, "L4": 4.0}, "spread_s": 0.1, "host_forward_s": 0.01,
        "host_backward_s": 0.01,
        "param_bytes": 8, "buffer_bytes": 1, "grad_bytes": 8, "largest_grad_bytes": 4, "grads": 2,
        "output_bytes": 8, "passing_bytes": 2, "held_bytes": 2, "saved_bytes": 4, "lent_bytes": 1,
        "upstream_grad_bytes": 8, "temp_bytes": 3, "forward_temp_bytes": 2, "backward_rise_bytes": 3,
        "flops": 100, "moved_bytes": 50, "arithmetic": [[100, 50]], "kernels": 2, "backward_flops": 200,
        "backward_moved_bytes": 99, "backward_arithmetic": [[200, 99]], "backward_kernels": 3,
        "backward_grad_bytes": 8, "dtype": "float16", "twin": "a", "colocate": "g", "weights": ["b.w", "b.b"],
        "held_until": "e", "awaited_before": "d", "awaited_after": [1], "runs_again": {"b": 0.5},
        "splits": {"shapes": {"w": [2, 2]}, "tied": {"w": ["x.w"]}, "refused": "", "rows": 4,
        "lengths": {"h": 2}},
    }  # fmt: skip
    glue = {
        "kind": "glue", "module": "", "type": "add", "forward_s": 1.0, "follows": "b", "output_bytes": 8,
        "writes": "given", "as_reached": True, "reaches": True, "on_host": False,
        "reads": {"a.w": {"shape": [2, 2], "place": 1}},
    }  # fmt: skip
    last = {"forward_s": 1.0, "backward_s": 1.0, "returned": {"0": 4}, "losses": {"0": 4}, "pin": "d1"}
    nodes: dict[str, dict[str, Any]] = {
        "input:x": {"kind": "input", "output_bytes": 8},
        "a": {"forward_s": 1.0, "backward_s": 1.0, "param_bytes": 4, "grad_bytes": 4, "output_bytes": 8},
        "b": layer,
        "c": {
            "forward_s": 1.0,
            "backward_s": 1.0,
            "output_bytes": 8,
            "colocate": "g",
            "mine": [1, {"x": None}],
        },
        "d": glue,
        "e": last,
        "u": {"unread": True, "param_bytes": 2},
    }
    edges: list[tuple[str, str, Any]] = [
        ("input:x", "a", {"bytes": 8, "grad_home": True}),
        ("a", "b", {"bytes": 8, "tensor": "0", "unsaved": True, "on_demand": True}),
        ("a", "c", {"bytes": 8, "tensor": "0+1", "parts": {"0": 4, "1": 4}, "copies": {"0": 5, "1": 4}}),
        ("b", "d", {"bytes": 8, "tensor": "0", "held": True, "brief": True}),
        ("c", "d", {"bytes": 8, "no_grad": True}),
        ("d", "e", {"bytes": 8}),
        ("c", "e", {"order_only": True, "host_waits": True}),
    ]
    notes = {
        "training": True, "measured": True, "model": "Net", "provenance": "by hand", "optimizer": "adam",
        "outputs": "device", "microbatches": 2, "containers": ["m"], "recompute": ["b"],
        "uncounted": ["aten::x"],
    }  # fmt: skip
    graph = graph_of(nodes, edges, **notes)
    cluster = Cluster(
        cluster_of(900, 900).devices,
        {("d0", "d1"): Link(1.0, 2.0)},
        Link(1.0, 4.0),
        "free",
        host=HostCosts.usual(),
    )
    where = {name: "d0" if name in "ad" else "d1" for name in graph.placed()}
    tried = (Candidate("single", 9.0, {"d0": 4}, "too full"), Candidate("m-etf"))
    plan = Plan(graph, cluster, where, placer="me", candidates=tried)
    dry = Plan(graph, cluster, where, placer="me", candidates=tried, dry=plan.timeline)
    shard = {"of": "h", "dimension": "out", "sizes": [2, 2], "number": 0, "cuts": {"w": 0},
    "tied": {"w": ["x"]},
            "units": {"w": [1, 1]}, "function": "linear"}  # fmt: skip
    split = graph_of(
        {
            "h[0]": {"shard": shard, "forward_s": 1.0},
            "h[1]": {"shard": {**shard, "number": 1}},
            "h[join]": {"joins": "h"},
            "h[broadcast]": {"broadcasts": "h"},
        },
        [("h[0]", "h[join]", 4), ("h[1]", "h[join]", 4)],
        training=True,
    )
    pipeline = ordered(Plan(graph, cluster, where), 2)
    records: dict[str, AbstractRecord] = {
        "graph": graph, "split graph": split, "cluster": cluster, "plan": dry, "pipeline": pipeline,
        "timeline": plan.timeline,
    }  # fmt: skip
    index = {"metadata": {"total_size": 16}, "weight_map": {"w": "one.safetensors", "b": "two.safetensors"}}
    return {**{kind: record.to_json() for kind, record in records.items()}, "index": json.dumps(index)}


def mutated(kind: str, random: Random) -> bytes:
    """The file of a record, with one to three changes.

    Args:
        kind: one of `KINDS`.
        random: the source of chance.
    """
    data, raw = json.loads(originals()[kind]), dict[str, str]()
    changes = random.choice((1, 1, 1, 2, 3))
    for _ in range(changes if random.random() < 0.8 else 0):
        _change(data, raw, random)
    text = json.dumps(data, indent=random.choice((None, 1)))
    for marker, said in raw.items():
        text = text.replace(f'"{marker}"', said)
    content = bytearray(text.encode())
    if (not raw and random.random() < 0.25) or content.decode() == originals()[kind]:
        for _ in range(changes):
            place = random.randrange(max(1, len(content)))
            match random.randrange(4):
                case 0:
                    del content[place:]
                case 1:
                    content[place : place + 1] = bytes([random.randrange(256)])
                case 2:
                    content[place : place + 1] = random.choice(
                        (b"{", b"]", b'"', b",", b"9", b"-", b"\\", b"")
                    )
                case _:
                    content[place:place] = content[place : place + random.randrange(60)]
    return bytes(content)


def _change(data: Any, raw: dict[str, str], random: Random) -> None:
    places = list(_places(data))
    if not places:  # the changes before took all
        return
    table, key = random.choice(places)
    match random.randrange(8):
        case 0 | 1:
            table[key] = copy.deepcopy(random.choice(OTHERS))
        case 2:
            marker = f"raw{len(raw)}"
            raw[marker], table[key] = random.choice(RAW), marker
        case 3:
            del table[key]
        case 4 if isinstance(table, list):
            table.insert(key, table[key])
        case 4:
            table[str(copy.deepcopy(random.choice(OTHERS)))] = table.pop(key)
        case 5:
            other, place = random.choice(list(_places(data)))
            table[key], other[place] = json.loads(json.dumps([other[place], table[key]]))
        case 6 if isinstance(table[key], (int, float)):
            table[key] = random.choice(
                (-table[key], table[key] * 1e30, table[key] / 1e30, table[key] + 0.5, 2**62)
            )
        case _:
            strings = [one[at] for one, at in _places(data) if isinstance(one[at], str)]
            table[key] = random.choice(strings or ["x"])


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key, below in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield data, key
        if isinstance(below, (dict, list)):
            yield from _places(below)


def used(kind: str, path: Path) -> None:
    """Read a file, and do with the record all that is done with one.

    Args:
        kind: one of `KINDS`.
        path: the file.
    """
    if kind == "index":
        checkpoint = Checkpoint(path)
        assert all([tensor.numel() for _, tensor in checkpoint.tensors(checkpoint.entries)])
        return
    reading: dict[str, type[AbstractRecord]] = {
        "graph": LayerGraph, "split graph": LayerGraph, "cluster": Cluster, "plan": Plan,
        "pipeline": Pipeline,
        "timeline": Timeline,
    }  # fmt: skip
    record = reading[kind].load(path)
    again = type(record).from_json(record.to_json())
    assert again.to_json() == record.to_json()
    record.save(path.with_name("again.json"))
    texts = [repr(record)]
    if isinstance(record, LayerGraph):
        texts += _planned(record, Cluster.uniform(2, memory=10**6))
    elif isinstance(record, Cluster):
        texts += [str(record.with_memory({record.names[0]: "1KiB"}))]
        texts += _planned(LayerGraph.from_json(originals()["split graph"]), record)
    elif isinstance(record, Timeline):
        plan = Plan.from_json(originals()["plan"])
        texts += [
            report.to_text(plan, record),
            report.to_html(plan, record),
            report.to_trace(plan.timeline, record),
        ]
        texts += [Facts(plan, record).to_json()]
    else:
        assert isinstance(record, (Plan, Pipeline))
        texts += [report.to_text(record), report.to_html(record), report.to_trace(record.timeline)]
        texts += [str(record.to_device_map()), str(record.to_device_map(index=True))]
        plan = record if isinstance(record, Plan) else record.plan
        texts += [Facts(plan).to_json(), str(baechi.compare(plan, plan)), baechi.simulate(plan).to_json()]
        assert plan.apart is not None and [plan.order_on(name) for name in plan.cluster.names]
    for text in texts:
        odd = [
            one for one in text if not one.isprintable() and one not in "\n\xa0"
        ]  # pages keep units beside figures
        assert not odd, f"{odd[:3]} are printed"


def _planned(graph: LayerGraph, cluster: Cluster) -> list[str]:
    plan = baechi.place(graph, cluster, placer="m-etf")
    return [report.to_text(plan), plan.to_json()]


class Hang(BaseException):
    """A file took too long."""


def wrong(seed: int, folder: Path) -> tuple[str, str]:
    """What happened with a seed's file: nothing that is wrong ("read", "refused"), or what, and where.

    Args:
        seed: of the change.
        folder: an empty one, with an empty one around it.
    """
    random = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    if kind == "index":
        for number, name in enumerate("wb"):
            save_file({name: torch.zeros(2)}, folder / f"{('one', 'two')[number]}.safetensors")
    path = folder / ("model.safetensors.index.json" if kind == "index" else "record.json")
    path.write_bytes(mutated(kind, random))
    outcome = "read", ""
    try:
        with limited(SECONDS, Hang()):
            used(kind, path)
    except BaechiError as error:
        lines = str(error).split("\n")
        outcome = "refused", ""
        if not all([line.isprintable() for line in lines]) or len(str(error)) > 30_000:
            outcome = "unprintable", repr(error)[:200]
    except (Exception, Hang) as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else ""
        outcome = f"{type(error).__name__} in {where}", f"{kind} {seed}: {error!r:.300}"
    if [one.name for one in folder.parent.iterdir()] != [folder.name]:
        outcome = "written outside", f"{kind} {seed}"
    for one in folder.iterdir():
        one.unlink()
    return outcome


def main(start: int, stop: int) -> None:
    """Run seeds, and print what went wrong."""
    logging.disable(logging.WARNING)
    counts, first = Counter[str](), dict[str, str]()
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "inner"
        folder.mkdir()
        for seed in range(start, stop):
            what, example = wrong(seed, folder)
            counts[what] += 1
            first.setdefault(what, example)
    for what, count in counts.most_common():
        print(count, what, first[what])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
