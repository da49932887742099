"""`baechi ranks`: which rank has what, what it sends, and the lines that start them."""

import json
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
from typer.testing import CliRunner, Result

import baechi
from baechi.cli import app
from baechi.records import Cluster, LayerGraph, Plan
from baechi.records.device import Host
from baechi.records.pipeline import Pipeline

MICROBATCHES, SENT, WEIGHTS = 3, 1000, 4096
"""Bytes of an activation of one microbatch, and of the weights of the first layer."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Five layers of 1000 bytes of weights over three of four devices, in three microbatches."""
    return pipeline_on("cpu:0 cpu:0 cpu:1 cpu:3 cpu:3".split(), Cluster.virtual(4))


def pipeline_on(devices: list[str], cluster: Cluster) -> Pipeline:
    graph = nx.DiGraph(training=True)
    graph.add_node("x", kind="input")
    names = [f"l{number}" for number in range(len(devices))]
    for number, name in enumerate(names):
        graph.add_node(name, forward_s=1.0, backward_s=2.0, param_bytes=WEIGHTS * (number + 1))
    graph.add_edges_from(zip(["x", *names], names, strict=False), bytes=SENT)
    plan = Plan(LayerGraph.from_networkx(graph), cluster, dict(zip(names, devices, strict=True)))
    return baechi.pipeline(plan, MICROBATCHES, "1f1b")


def test_each_rank_has_its_part(pipeline: Pipeline, tmp_path: Path) -> None:
    """Devices without layers need no process; both ways a message goes for each microbatch."""
    file = tmp_path / "pipeline.json"
    pipeline.save(file)
    done = run("ranks", str(file), "--json")
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    ranks = body["ranks"]
    assert [one["rank"] for one in ranks] == [0, 1, 2]
    assert [one["device"] for one in ranks] == ["cpu:0", "cpu:1", "cpu:3"]
    assert [one["layers"] for one in ranks] == [2, 1, 2]
    assert [one["weight_bytes"] for one in ranks] == [3 * WEIGHTS, 3 * WEIGHTS, 9 * WEIGHTS]
    each = {"messages": MICROBATCHES, "size_bytes": MICROBATCHES * SENT}
    assert [one["sends"] for one in ranks] == [
        [{"target": 1, **each}],
        [{"target": 0, **each}, {"target": 2, **each}],
        [{"target": 1, **each}],
    ]
    assert body["start"] == [{"host": "", "command": "torchrun --nproc-per-node 3 train.py"}]
    done = run("ranks", str(file), "--script", "run.py --lr 1")
    assert "torchrun --nproc-per-node 3 run.py --lr 1\n" in done.stdout
    assert "3 ranks" in done.stdout
    assert "1 > 2" in done.stdout


def test_by_host(tmp_path: Path) -> None:
    """Each host has a line of its own, with as many processes as it has used devices."""
    cluster = Cluster.parse("2x(3xL4)")
    names = list(cluster.names)
    file = tmp_path / "plan.json"
    pipeline_on([names[0], names[2], names[3]], cluster).plan.save(file)  # a plan goes as well
    done = run("ranks", str(file))
    assert done.exit_code == 0, done.output
    where = "--master-addr host0 --master-port 29500 train.py"
    assert f"host0: torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 {where}\n" in done.stdout
    assert f"host1: torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 {where}\n" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if " > " in line and "from" not in line]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("0", "1", "no"),
        ("1", "0", "no"),
        ("1", "2", "yes"),
        ("2", "1", "yes"),
    ]


def test_devices_that_have_ranks(tmp_path: Path) -> None:
    """They keep these, also those that have no layers."""
    file = tmp_path / "pipeline.json"
    cluster = Cluster.virtual(3, ranks=True)
    pipeline_on([cluster.names[2], cluster.names[0]], cluster).save(file)
    body = json.loads(run("ranks", str(file), "--json").stdout)
    assert [(one["rank"], one["layers"]) for one in body["ranks"]] == [(0, 1), (1, 0), (2, 1)]
    assert "--nproc-per-node 3" in body["start"][0]["command"]


def test_one_device(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    pipeline_on(["cpu:1", "cpu:1"], Cluster.virtual(2)).save(file)
    done = run("ranks", str(file))
    assert "it needs no torchrun" in done.stdout
    assert "They send nothing." in done.stdout


def test_what_does_not_go_over_ranks(tmp_path: Path) -> None:
    """Hosts whose devices lie between each other's; modules that run again; a file of another kind."""
    file = tmp_path / "plan.json"
    devices = Cluster.virtual(4).devices
    hosts = (Host("a", ("cpu:0", "cpu:2")), Host("b", ("cpu:1", "cpu:3")))
    cluster = Cluster(devices, hosts=hosts)
    pipeline_on(["cpu:0", "cpu:1", "cpu:2"], cluster).save(file)
    done = run("ranks", str(file))
    assert done.exit_code == 2
    assert "ranks [0, 2] are of a, and torchrun numbers the ranks of a host" in done.output
    plan = pipeline_on(["cpu:0", "cpu:1"], Cluster.virtual(2)).plan
    graph = LayerGraph.from_networkx(plan.graph)
    graph.graph["recompute"] = ["l0"]
    replace(plan, graph=graph).save(file)
    done = run("ranks", str(file))
    assert done.exit_code == 2
    assert "runs modules again in backward" in done.output
    graph.save(file)
    done = run("ranks", str(file))
    assert done.exit_code == 2
    assert "error: " in done.output
