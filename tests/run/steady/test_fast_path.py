"""The fast path, where nothing can wait: which layers take it, and when it is left."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from run.launched import runtime_of
from torch import Tensor, nn

import baechi
from baechi.run import calls, plain_step


class Chain(nn.Module):
    """Nothing waits: `a` reads the caller's input, `d` what comes from another device."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.d = (nn.Linear(4, 4) for _ in range(3))
        self.norm, self.act = nn.BatchNorm1d(4), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.d(self.act(self.norm(self.b(self.a(x)))))
        return result


def hook(model: Any) -> None:
    model.b.register_forward_hook(lambda module, args, result: result * 2)


def hook_with_input(model: Any) -> None:
    """The layer is given what lies elsewhere: the caller's memory."""
    model.b.register_forward_pre_hook(lambda module, args: (INPUT,))


def flag(model: Any) -> None:
    """Batch norm writes its statistics in training."""
    model.norm.train()


def weight(model: Any) -> None:
    model.b.weight = nn.Parameter(model.b.weight.detach() * 2)


def layer(model: Any) -> None:
    """What was not there when the model was placed is code of the model."""
    model.act = nn.Tanh()


def nothing(model: Any) -> None:
    del model


INPUT = noise(5, 4)
CHANGES: list[tuple[Callable[[Any], None], int, str]] = [
    (hook, 2, ""),
    (hook_with_input, 5, "b"),
    (flag, 2, "norm"),
    (weight, 2, ""),
    (layer, 2, "act"),
    (nothing, 3, ""),
]
"""A change, the rows of the batch after it, and the layer that leaves the fast path then."""


def chain() -> nn.Module:
    model, cluster = seeded(Chain)().eval(), baechi.Cluster.virtual(2)
    graph = baechi.profile(model, noise(2, 4), cluster=cluster, training=False, source="estimate")
    devices = {node: cluster.names[node == "d"] for node in graph.code_order()}
    return baechi.assign(model, baechi.Plan(graph, cluster, devices, tuple(graph.code_order())))


def outcome(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    out = model(x)
    out.square().sum().backward()
    grads = [weight.grad for weight in model.parameters()]
    return [out.detach(), *grads, *[buffer.clone() for buffer in model.buffers()]]


@pytest.mark.parametrize(("change", "rows", "left"), CHANGES, ids=[change.__name__ for change, *_ in CHANGES])
def test_it_is_left(
    change: Callable[[Any], None], rows: int, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    run_layer, run_at_its_turn = plain_step.run_layer, plain_step._run_at_its_turn

    def noted(*given: Any) -> Any:
        reached.append(given[3].name)
        return run_layer(*given)

    def left_for(*given: Any) -> Any:
        reached.remove(given[3].name)
        return run_at_its_turn(*given)

    def check(rows: int, expected: set[str]) -> None:
        x = INPUT[:rows]
        plain_tensors, tensors = outcome(plain, x), outcome(model, x)
        for one, other in zip(plain_tensors, tensors, strict=True):
            assert one is other is None or torch.equal(one, other)  # type: ignore[arg-type]
        assert set(reached) == expected
        reached.clear()

    monkeypatch.setattr(calls, "run_layer", noted)
    monkeypatch.setattr(plain_step, "_run_at_its_turn", left_for)
    plain, model = seeded(Chain)().eval(), chain()
    assert not runtime_of(model).may_wait
    for _ in range(2):
        check(2, {"b", "norm", "act"})
    change(plain)
    change(model)
    for _ in range(2):
        check(rows, {"b", "norm", "act"} - {left})
