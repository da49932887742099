"""Programs on the emulated cluster: steps and peaks as predicted, and the backward of weights apart."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn

import baechi
from baechi.backend.transfer import transfer
from baechi.run.programs import loop

EXACT = baechi.Stages(backend="aot_eager")


class Blocks(nn.Module):
    """Residual blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        for row in self.rows:
            x = x + row(x)
        return x.square().mean()


@pytest.mark.parametrize(
    ("number", "apart"), [(1, False), pytest.param(4, False, marks=pytest.mark.full), (4, True)]
)
def test_as_predicted(number: int, apart: bool) -> None:
    """The step within two per cent, peaks no higher; where the backward of weights is apart, too."""
    model, x = seeded(Blocks), noise(64, 64)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    split = {"microbatches": number, "weights_apart": apart} if number > 1 else {}
    graph = baechi.profile(model, x, cluster=cluster, training=True, source="estimate", **split)
    plan = baechi.place(graph, cluster, "even")
    made = baechi.pipeline(plan, number) if number > 1 else plan
    baechi.distribute(model, plan=made, compile=EXACT)
    with cluster:
        for _ in range(2):
            model.zero_grad()
            model(x=x).backward()
        step = baechi.last_step(model)
    plain(x).backward()
    assert_same_gradients(model, plain)
    assert step.makespan_s == pytest.approx(made.timeline.makespan_s, rel=0.02)
    for name, peak in step.peak_bytes.items():
        assert peak <= made.timeline.peak_bytes[name], name
    weights_apart = bool(baechi.plan_of(model).units.weights_of) if number > 1 else False  # type: ignore[union-attr]
    assert weights_apart == apart
    assert step.counters["programs"] == number * (5 if apart else 4) - (2 if number == 1 else 0)


def test_weights_apart_take_no_longer_than_the_code() -> None:
    """ "Zero bubble" as programs: the same gradients, in a step that is no longer than that of the code."""
    taken_s, models = [], []
    for how in (None, EXACT):
        model, x = seeded(Blocks), noise(64, 64)
        cluster = baechi.Cluster.virtual(2)
        graph = baechi.profile(
            model, x, cluster=cluster, training=True, source="estimate", microbatches=4, weights_apart=True
        )
        pipeline = baechi.pipeline(baechi.place(graph, cluster, "even"), 4)
        assert pipeline.units.weights_of
        baechi.distribute(model, plan=pipeline, compile=how)
        with cluster:
            for _ in range(2):
                model.zero_grad()
                model(x=x).backward()
            taken_s.append(baechi.last_step(model).makespan_s)
        models.append(model)
    assert_same_gradients(models[1], models[0])
    assert taken_s[1] <= taken_s[0]


class _Scaled(nn.Module):
    """Two layers, each with a number that its code makes a tensor of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) * torch.tensor([0.5])
        return x.square().mean()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What programs fetch from other devices."""
    found: list[Tensor] = []

    def noted(tensor: Tensor, *rest: Any) -> Tensor:
        found.append(tensor)
        return transfer(tensor, *rest)

    monkeypatch.setattr(loop, "transfer", noted)
    return found


def test_constants_are_sent_once_a_step(sent: list[Tensor]) -> None:
    """They went to their device again for each microbatch: GPT-2 has two for each block."""
    model, x = seeded(_Scaled), noise(8, 8)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, microbatches=4, placer="even", compile=EXACT)
    sent.clear()
    model(x).backward()
    plain(x).backward()
    assert_same_gradients(model, plain)
    assert len([one for one in sent if one.shape == (1,)]) == 2


class _Meeting(nn.Module):
    """Two towers, whose vectors are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.left(x), self.right(x))


@pytest.mark.parametrize("number", [1, 4])
def test_towers_go_back_where_they_lie(number: int, sent: list[Tensor]) -> None:
    """The loss lay with one tower: the other's backward ran there, too, and its weights were sent."""
    model, x = seeded(_Meeting), noise(8, 8)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(4)
    split = {"microbatches": number} if number > 1 else {}
    graph = baechi.profile(model, x, cluster=cluster, training=True, source="estimate", **split)
    where = ["cpu:0", "cpu:1", "cpu:1", "cpu:2", "cpu:3"]
    plan = baechi.Plan(graph, cluster, dict(zip(graph.placed(), where, strict=True)))
    made = baechi.pipeline(plan, number) if number > 1 else plan
    baechi.distribute(model, plan=made, compile=EXACT)
    model(x=x).backward()
    plain(x).backward()
    assert_same_gradients(model, plain)
    assert not [one for one in sent if isinstance(one, nn.Parameter)]


@pytest.mark.full
def test_draws_do_not_depend_on_the_plan() -> None:
    """Microbatches draw the same whether programs run or the code, and wherever layers lie."""

    def loss(placer: str, how: baechi.Stages | None) -> Tensor:
        model = seeded(Dropping)
        cluster = baechi.Cluster.virtual(3)
        given = noise(8, 64)
        baechi.distribute(
            model, given, cluster=cluster, placer=placer, microbatches=2, coupled="accept", compile=how
        )
        torch.manual_seed(1)
        made: Tensor = model(given)
        made.backward()
        return made.detach()

    first = loss("even", EXACT)
    assert torch.equal(loss("random:3", EXACT), first)
    assert torch.equal(loss("even", None), first)


class Dropping(Blocks):
    """With a dropout after each block."""

    def forward(self, x: Tensor) -> Tensor:
        for row in self.rows:
            x = x + nn.functional.dropout(row(x), 0.3, self.training)
        return x.square().mean()


def test_the_compiler_knows_torchs_own_functions_afterwards() -> None:
    """It notes them when it first asks, and other functions stand in their places in an emulation."""
    from torch._dynamo import trace_rules

    trace_rules.get_torch_obj_rule_map.cache_clear()  # as in a process that has compiled nothing
    with baechi.Cluster.virtual(2):
        torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
    made = torch.compile(lambda x: x * torch.tensor(2.0), backend="eager", fullgraph=True)
    assert made(torch.ones(2)).tolist() == [2, 2]
