"""Six ways to run a model: by m-ETF and by a random plan, reordering off, by the host, by threads."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
import torch
from architectures.base import noise, seeded
from run.launched import runtime_of
from same import identical
from torch import Tensor, nn

import baechi

Test = TypeVar("Test", bound=Callable[..., None])

DEVICES = 3


@dataclass(frozen=True)
class Way:
    """A placer, and who launches what waits."""

    placer: str
    reorder: Any

    def __str__(self) -> str:
        return f"{self.placer}-{self.reorder or 'off'}"

    def distribute(
        self, build: Callable[[], nn.Module], inputs: Callable[[], Any], training: bool = True
    ) -> tuple[nn.Module, baechi.Cluster]:
        """A new model, distributed this way over three emulated devices; and those."""
        plan = _plan(build, inputs, training, self.placer)
        return baechi.assign(build(), plan, reorder=self.reorder), plan.cluster


WAYS = [Way(placer, reorder) for placer in ("m-etf", "random:3") for reorder in (False, "host", "threads")]
TURNS = (WAYS[::2], WAYS[1::2])
"""Each has every launcher once, and both placers."""


def every_way(test: Test) -> Test:
    """Run a test by each launcher, under placers in turn: which begins goes by the length of its name.

    In the default tier by one launcher only, which goes by the length of the name, too.
    """
    turn, own = TURNS[len(test.__name__) % 2], len(test.__name__) // 2 % 3
    ways = [pytest.param(way, marks=[] if way is turn[own] else pytest.mark.full) for way in turn]
    marked: Test = pytest.mark.parametrize("way", ways, ids=str)(test)
    return marked


@functools.cache
def _cluster() -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(DEVICES, link=baechi.Link(latency_s=1e-9, bytes_per_s=1e15))
    return replace(cluster, launch_s=1e-9)  # so that it is worth to spread even these


@functools.cache
def _graph(build: Callable[[], nn.Module], inputs: Callable[[], Any], training: bool) -> baechi.LayerGraph:
    return baechi.profile(build(), inputs(), cluster=_cluster(), training=training)


@functools.cache
def _plan(
    build: Callable[[], nn.Module], inputs: Callable[[], Any], training: bool, placer: str
) -> baechi.Plan:
    plan = baechi.place(_graph(build, inputs, training), _cluster(), placer)
    if len(plan.devices_used) < DEVICES:
        pytest.fail(f"{placer} uses {plan.devices_used}")
    return plan


class Branches(nn.Module):
    """Two branches that meet; one writes in place, the other keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
        self.right = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.BatchNorm1d(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x), self.right(x)], dim=1)


class Rig(nn.Module):
    """Branches after branches. No tensor has more than two uses, so gradients are the same to the bit."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.first, self.mix = nn.Linear(3, 8), Branches(), nn.Linear(16, 8)
        self.side = nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 8))
        self.second, self.head = Branches(), nn.Linear(16, 3)
        self.late = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def hidden(self, x: Tensor) -> Tensor:
        near, far = x[:, :3], x[:, 3:]
        h: Tensor = self.mix(self.first(self.enter(near)))
        return h + self.side(far)

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: float = 1.0) -> Tensor:
        h = self.hidden(x)
        if shift is not None:
            h = h + shift
        out: Tensor = self.head(self.second(h)) + self.late(x)
        return out * scale


rig = seeded(Rig)


def batch(rows: int = 5, seed: int = 1) -> Tensor:
    return noise(rows, 6, seed=seed)


def same(
    way: Way,
    run: Callable[[Any], Any],
    build: Callable[[], nn.Module] = rig,
    inputs: Callable[[], Any] = batch,
    *,
    training: bool = True,
    waits: bool = True,
    tolerance: float = 0.0,
) -> nn.Module:
    """Run something with a plain model, and with one that is distributed: all is the same to the bit.

    Args:
        way: how it is distributed.
        run: what to do with a model; what it returns is compared.
        build: makes the model.
        inputs: what the plan is made with.
        training: whether the model is in training.
        waits: whether something waits in the last step, if the plan lets something wait.
        tolerance: by how much numbers may be off, relative to the largest of their tensor.

    Returns:
        The distributed model.
    """
    plain = build().train(training)
    torch.manual_seed(5)
    expected = run(plain), left_by(plain)
    model, cluster = way.distribute(build, inputs, training)
    model.train(training)
    threads = threading.active_count()
    torch.manual_seed(5)
    with cluster:
        found = run(model)
        assert torch._C._len_torch_function_stack() == 0
    assert threading.active_count() == threads
    assert_equal(expected, (found, left_by(model)), tolerance)
    if waits:
        runtime = runtime_of(model)
        assert bool(runtime.counts.get("deferred", 0)) == (bool(way.reorder) and runtime.may_wait)
    return model


def left_by(model: nn.Module) -> dict[str, Any]:
    """What a run leaves behind: weights, buffers, gradients."""
    left: dict[str, Any] = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    left.update({f"{name}.grad": weight.grad for name, weight in model.named_parameters()})
    return left


def assert_equal(one: Any, other: Any, tolerance: float = 0.0, where: str = "") -> None:
    """Nested values are the same.

    Args:
        one: the plain model's.
        other: the distributed one's.
        tolerance: see `same`.
        where: what is compared.
    """
    if isinstance(one, (dict, list, tuple)):
        pairs = one.items() if isinstance(one, dict) else enumerate(one)
        assert len(one) == len(other) and (not isinstance(one, dict) or list(one) == list(other)), where
        for key, value in pairs:
            assert_equal(value, other[key], tolerance, f"{where}.{key}")
    elif isinstance(one, (Tensor, float)) and tolerance:
        one, other = torch.as_tensor(one).double(), torch.as_tensor(other).double()
        assert one.shape == other.shape, where
        assert one.numel() == 0 or (one - other).abs().max() <= tolerance * one.abs().max(), where
    elif isinstance(one, Tensor):
        assert isinstance(other, Tensor) and identical(one, other), where
    else:
        assert one == other, where
