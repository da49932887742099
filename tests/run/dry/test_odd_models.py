"""Dry runs of models that do odd things: as they run with values, or refused with a reason."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from matrix import pairs_by_tier
from run.dry.steps import OPTIMIZERS, ran
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.torchlib.fakes.kernels import valueless_like
from baechi.torchlib.fakes.survivors import spoil_survivors
from baechi.torchlib.fakes.valueless import MADE, is_valueless

X = torch.ones(4, 16)


class Layers(nn.Module):
    """Three layers, called by a function of theirs."""

    def __init__(
        self, run: Callable[[Any, Tensor], Any], *, change: Callable[[Any], None] | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
        self.run = run
        if change is not None:
            change(self)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def through(m: Any, x: Tensor) -> Tensor:
    result: Tensor = m.c(torch.relu(m.b(m.a(x))))
    return result


def listed(m: Any) -> None:
    m.kept = [m.a.weight, m.b.weight]


def in_place(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, :8].mul_(2)
    h[:, 8:].relu_()
    result: Tensor = m.c(m.b(h))
    return result


def recomputed(m: Any, x: Tensor) -> Tensor:
    result: Tensor = m.c(checkpoint(lambda h: torch.relu(m.b(h)), m.a(x), use_reentrant=False))
    return result


def normed(m: Any) -> None:
    m.b, m.c = weight_norm(m.b), spectral_norm(m.c)


def tied(m: Any) -> None:
    m.c.weight = m.a.weight


def constant(m: Any, x: Tensor) -> Tensor:
    return through(m, x) + torch.tensor([0.5]).to(x.device) * m.scale


def scaled(m: Any) -> None:
    m.scale = torch.full((16,), 3.0)


ODD: dict[str, Callable[[], nn.Module]] = {
    "parameters in a list": lambda: Layers(
        lambda m, x: through(m, x) @ m.kept[0] + m.kept[1].sum(), change=listed
    ),
    "views written in place": lambda: Layers(in_place),
    "activation checkpointing": lambda: Layers(recomputed),
    "parametrized weights": lambda: Layers(through, change=normed),
    "tied weights": lambda: Layers(through, change=tied),
    "numbers, and tensors that are no buffers": lambda: Layers(constant, change=scaled),
    "a dict of outputs": lambda: Layers(lambda m, x: {"loss": through(m, x).mean(), "more": m.a(x)}),
    "no gradient of an input": lambda: Layers(lambda m, x: through(m, x.detach())),
    "a convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.Hardswish()),
    "a bag of embeddings": lambda: Layers(
        lambda m, x: m.c(m.bag(torch.arange(8).reshape(4, 2))),
        change=lambda m: setattr(m, "bag", nn.EmbeddingBag(9, 16)),
    ),
}


@pytest.mark.default_cases(2)
@pytest.mark.parametrize(
    ("name", "way", "reorder"), pairs_by_tier(list(ODD), ["inference", "sgd", "adam"], ["host", "threads"])
)
def test_as_it_runs(name: str, way: str, reorder: Any) -> None:
    """Steps and peaks are those of the same steps with values."""
    cluster = baechi.Cluster.virtual(2)
    training = way != "inference"
    graph = baechi.profile(ODD[name](), (X,), cluster=cluster, training=training, source="estimate")
    plan = baechi.place(graph, cluster, "random:1")
    model = ODD[name]().train(training)
    optimizer = OPTIMIZERS[way](model.parameters()) if training else None
    found = baechi.dry_run(model, (X,), plan, optimizer=optimizer, reorder=reorder)
    real = ran(ODD[name](), (X,), plan, way, reorder=reorder)
    assert found.makespan_s == pytest.approx(real.makespan_s, rel=1e-9)
    assert dict(found.peak_bytes) == dict(real.peak_bytes)
    assert not any(is_valueless(tensor) for tensor in model.state_dict().values())


def test_under_autocast() -> None:
    """Costs and bytes are those of the dtype that kernels compute in."""
    cluster = baechi.Cluster.virtual(1)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            graph = baechi.profile(Layers(through), (X,), cluster=cluster, source="estimate")
            plan = baechi.place(graph, cluster, "single")
            found.append(baechi.dry_run(Layers(through), (X,), plan))
            real = ran(Layers(through), (X,), plan, "sgd")
            assert found[-1].counters["kernels"] > 0 and real.counters["kernels"] > 0
    assert found[0].peak_bytes != found[1].peak_bytes


def test_an_exception_in_the_middle() -> None:
    """Also one that is no error of the model: everything is put back."""

    def interrupted(m: Any, x: Tensor) -> Tensor:
        h = through(m, x)
        if m.interrupts:
            raise KeyboardInterrupt
        return h

    model = Layers(interrupted, change=lambda m: setattr(m, "interrupts", False))
    plan = baechi.place(
        baechi.profile(model, (X,), cluster=baechi.Cluster.virtual(2), source="estimate"),
        baechi.Cluster.virtual(2),
        "random:1",
    )
    expected = model(X)
    model.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        baechi.dry_run(model, (X,), plan)
    model.interrupts = False
    assert torch.equal(model(X), expected)
    assert str(X.device) == "cpu" and torch.overrides._get_current_function_mode() is None
    with baechi.Cluster.virtual(2):  # none is left open
        pass


def test_sparse_gradients_are_refused() -> None:
    """They have no shape functions; `distribute` takes estimates."""
    model = nn.Sequential(nn.Embedding(9, 16, sparse=True), nn.Linear(16, 4))
    ids = torch.arange(6).reshape(2, 3)
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(model, (ids,), cluster=cluster, source="estimate")
    with pytest.raises(baechi.DryRunError, match="does not run without values"):
        baechi.dry_run(model, (ids,), baechi.place(graph, cluster, "even"))
    baechi.distribute(model, (ids,), cluster=cluster)
    assert baechi.plan_of(model).timeline.source == "simulated"


def test_deterministic_algorithms() -> None:
    """Torch fills new memory then, for which there may be no room."""
    torch.use_deterministic_algorithms(True)
    try:
        cluster = baechi.Cluster.uniform(8)
        with torch.device("meta"):
            model = nn.Sequential(*[nn.Linear(1 << 15, 1 << 15, bias=False) for _ in range(16)])
        x = torch.empty(1, 1 << 15, device="meta")
        graph = baechi.profile(model, (x,), cluster=cluster, training=True, source="estimate")
        found = baechi.dry_run(model, (x,), baechi.place(graph, cluster, "even"), optimizer="adam")
        assert sum(found.peak_bytes.values()) > 200 * 2**30
    finally:
        torch.use_deterministic_algorithms(False)


@functools.lru_cache
def remembered(size: int) -> Tensor:
    """A table that a function keeps; its float part follows from nothing, so it is computed."""
    return torch.linspace(0, 1, size).outer(torch.linspace(0, 1, size))


CACHE: dict[str, Tensor] = {}


def kept(m: Any, x: Tensor) -> Tensor:
    """A global table of the model's code, made of what has no values."""
    if "scale" not in CACHE:
        CACHE["scale"] = m.a.weight.detach().mean(0)
    result: Tensor = m.c(m.a(x) * CACHE["scale"])
    return result


def by_function(m: Any, x: Tensor) -> Tensor:
    result: Tensor = m.c(m.a(x) @ remembered(16) + of_weights(m, x.shape[-1]))
    return result


@functools.lru_cache
def of_weights(m: Any, size: int) -> Tensor:
    with torch.no_grad():
        mean: Tensor = m.b.weight[:size].mean(0)
    return mean


def run_dry(model: nn.Module) -> None:
    cluster = baechi.Cluster.virtual(1)
    graph = baechi.profile(Layers(through), (X,), cluster=cluster, training=False, source="estimate")
    baechi.dry_run(model, (X,), baechi.place(graph, cluster, "single"))


def test_what_functions_remember_is_forgotten() -> None:
    """Else the next call would compute with memory in which nothing was written."""
    expected = Layers(by_function).eval()(X)
    remembered.cache_clear()
    of_weights.cache_clear()
    model = Layers(by_function).eval()
    run_dry(model)
    assert of_weights.cache_info().currsize == 0
    assert torch.equal(model(X), expected)


def test_what_else_keeps_it_is_spoiled(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can be put back there, so it must be seen: NaN, and a word in the log."""
    CACHE.clear()
    model = Layers(kept).eval()
    with caplog.at_level(logging.WARNING):
        run_dry(model)
    assert "1 tensors of a dry run are still held by something outside the model" in caplog.text
    assert model(X).isnan().all()
    CACHE.clear()
    assert not model(X).isnan().any()


def test_what_the_model_keeps_is_its_own_again() -> None:
    """An attribute that is no buffer, written in place: the same values as before, and known ones."""

    def counting(m: Any, x: Tensor) -> Tensor:
        m.scale.mul_(m.a.weight.detach().mean().to(m.scale.device))
        result: Tensor = m.c(m.a(x))
        return result

    model = Layers(counting, change=scaled).eval()
    run_dry(model)
    assert torch.equal(model.scale, torch.full((16,), 3.0)) and not is_valueless(model.scale)


def test_nothing_is_alive_after() -> None:
    """Neither after a run nor after an error."""
    run_dry(Layers(through).eval())
    assert not MADE

    def decides(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        result: Tensor = m.b(h) if h.sum() > 0 else m.c(h)
        return result

    with pytest.raises(baechi.DryRunError) as caught:
        run_dry(Layers(decides).eval())
    assert not MADE and "needs values" in str(caught.value)


def test_a_device_that_is_full_leaves_nothing_either() -> None:
    """The run without limits follows while the first one's error is handled."""
    cluster = baechi.Cluster.virtual(1, memory=4000)
    graph = baechi.profile(Layers(through), (X,), cluster=cluster, training=True, source="estimate")
    plan = baechi.Plan(graph, cluster, dict.fromkeys(graph.placed(), "cpu:0"))
    alive: list[int] = []
    model = Layers(lambda m, x: (alive.append(sum([s.nbytes() for s in MADE])), through(m, x))[1])
    found = baechi.dry_run(model, (X,), plan, optimizer="adam")
    assert found.peak_bytes["cpu:0"] > 4000 and not MADE
    assert alive[0] == alive[1]  # the second run began with as much alive as the first


def test_large_memory_is_spoiled_at_its_beginning() -> None:
    """The system never gave all of it, and may not have so much."""
    (large,) = valueless_like([torch.empty(1 << 20)])
    spoil_survivors()
    assert large[: 1 << 18].isnan().all() and large.sum().isnan()
