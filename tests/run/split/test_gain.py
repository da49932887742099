"""`split="auto"`: the heaviest layer of a chain is split where steps get shorter by it, and not elsewhere."""

import functools
from dataclasses import replace

import pytest
import torch
from run.split.split_layers import assert_same, twins, words
from torch import nn

import baechi
from baechi.split.rewrite import split
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.verbs.split.gain import split_where_it_gains

WORDS = 400
INPUTS = (words(4, 8, below=WORDS), words(4, 8, below=WORDS))


class Words(nn.Module):
    """A language model whose head is what takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 64), nn.Linear(64, WORDS)
        self.middle = nn.Linear(64, 64)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.middle(self.embed(ids)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def slow_devices(number: int, link: str | None = None) -> baechi.Cluster:
    """Devices whose arithmetic takes ten thousand times as long as an A100's, so that it is what counts."""
    cluster = baechi.Cluster.virtual(number, memory="1GiB", link=link)
    slower = [
        replace(device, flops_per_s={kind: rate / 1e4 for kind, rate in device.flops_per_s.items()})
        for device in cluster.devices
    ]
    return replace(cluster, devices=tuple(slower))


@pytest.mark.parametrize("verify", [True, False])
def test_a_heavy_head_is_split(verify: bool) -> None:
    """Words take nearly all of a step: each device takes half of them. The same gradients, in less time."""
    model, plain = twins(Words)
    cluster = slow_devices(2)
    asked = {"cluster": cluster, "source": "estimate", "effort": 0, "verify": verify}
    steps_s = {}
    for way in ("auto", None):
        baechi.distribute(model, INPUTS, split=way, **asked)  # type: ignore[arg-type]
        assert isinstance(model.head.weight, ShardedWeight) is (way == "auto")
        with cluster:
            model(*INPUTS).backward()
        if way == "auto":
            plain(*INPUTS).backward()
            assert_same(model, plain)
        steps_s[way] = baechi.last_step(model).makespan_s
        model.zero_grad()
        baechi.restore(model)
    assert steps_s["auto"] < 0.8 * steps_s[None]


@pytest.mark.parametrize("slower", [1, 2000])
def test_a_sharded_loss_takes_what_is_predicted(slower: int) -> None:
    """More passes over the logits than a whole one, and more ops: where the host counts, and where memory."""
    model, _ = twins(Words)
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    devices = [replace(device, bytes_per_s=device.bytes_per_s / slower) for device in cluster.devices]
    cluster = replace(cluster, devices=tuple(devices))
    half = baechi.BatchSpec({"out": WORDS // 2}, [0, 1])
    baechi.distribute(
        model, INPUTS, cluster=cluster, source="estimate", split={"head": half}, effort=0, verify=False
    )
    with cluster:
        model(*INPUTS).backward()
    step_s, predicted_s = baechi.last_step(model).makespan_s, baechi.plan_of(model).timeline.makespan_s
    assert 0.8 < step_s / predicted_s < 1.2, (step_s, predicted_s)


def test_a_dry_run_decides() -> None:
    """Without `verify`, too: a split plan that only its simulation calls faster does not stand in."""
    model, _ = twins(Words)
    cluster = slow_devices(2)
    graph = baechi.profile(model, INPUTS, cluster=cluster, source="estimate")
    place = functools.partial(baechi.place, cluster=cluster, effort=0)
    whole = place(graph)

    def judge(plan: baechi.Plan, late: float) -> baechi.Plan:
        times = late if plan.graph.says("shard") else 1
        return replace(plan, dry=replace(plan.timeline, makespan_s=plan.timeline.makespan_s * times))

    for late in (1.0, 4.0):
        made = split_where_it_gains(graph, cluster, whole, place, place, functools.partial(judge, late=late))
        assert made.graph.says("shard") is (late == 1)


@pytest.mark.parametrize(("link", "devices"), [("1MB/s", 2), (None, 1)])
def test_it_stays_whole_where_nothing_is_gained(link: str | None, devices: int) -> None:
    """Over a slow link, and on a single device."""
    model, _ = twins(Words)
    cluster = slow_devices(devices, link)
    baechi.distribute(model, INPUTS, cluster=cluster, source="estimate", effort=0, split="auto")
    plan = baechi.plan_of(model)
    assert not plan.graph.says("shard")
    if devices > 1:  # it could be
        assert split(plan.graph, {"head": 2}).says("shard")


class Images(nn.Module):
    """Convolutions of few channels over large images, and a head that needs all of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.deep, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.deep(torch.relu(self.norm(self.enter(x))))
        made: torch.Tensor = self.head(x.mean((2, 3)))
        return made


@pytest.mark.parametrize(("slower", "rows"), [(1, {3}), (2, {2, 4})])
def test_rows_of_heavy_layers_with_few_weights(slower: float, rows: set[int]) -> None:
    """Each device takes as many rows as it is fast. The dry run that decides takes what the step takes."""
    model, plain = twins(Images)
    cluster = slow_devices(2)
    first, second = cluster.devices
    rates = {kind: rate / slower for kind, rate in second.flops_per_s.items()}
    second = replace(second, kind="slower", flops_per_s=rates, bytes_per_s=second.bytes_per_s / slower)
    cluster = replace(cluster, devices=(first, second))
    x = torch.randn(6, 3, 24, 24, dtype=torch.float64)
    asked = {"cluster": cluster, "source": "estimate", "effort": 0}
    steps_s = {}
    for way in ("auto", None):
        baechi.distribute(model, x, split=way, **asked)  # type: ignore[arg-type]
        plan = baechi.plan_of(model)
        with cluster:
            model(x).sum().backward()
        steps_s[way] = baechi.last_step(model).makespan_s
        if way == "auto":
            shards = [costs.shard for _, costs in plan.graph.placed_costs() if costs.shard]
            assert {shard["dimension"] for shard in shards} == {"rows"}
            assert {size for shard in shards for size in shard["sizes"]} == rows
            assert plan.timeline.makespan_s == pytest.approx(steps_s[way], rel=0.1)
            plain(x).sum().backward()
            assert_same(model, plain)
        model.zero_grad()
        baechi.restore(model)
    assert steps_s["auto"] < 0.8 * steps_s[None]
