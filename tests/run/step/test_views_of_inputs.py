"""A layer that returns a view of what it was given, and what is written through either of them."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from order.interleaved import captured_graph, distribute
from run.worlds import Net, linear
from torch import Tensor, nn

pytestmark = pytest.mark.default_cases(2)


class Tripled(torch.autograd.Function):
    """Returns a view, and has a backward that is no view's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1, 2, 4)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 3 * grads[0].reshape(-1, 8)


class View(nn.Module):
    """Returns a view of one kind."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Tensor:
        return self.make(x)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(-1, 2, 4),
    "part": lambda x: x[1:, ::2],
    "turned": lambda x: x.t(),
    "wider": lambda x: x[:, :1].expand(-1, 8),
    "detached": lambda x: x.detach().view(-1, 2, 4),
    "custom": Tripled.apply,
    "itself": lambda x: x.view(-1, 8),
    "copy": lambda x: x.clone(),
    "dropout": lambda x: nn.functional.dropout(x, 0.5, training=False),  # returns what it is given
    "contiguous": lambda x: x.contiguous(),
}

WRITES: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "layer": lambda net, x, view: net.write(view),
    "function": lambda net, x, view: view.add_(1),
    "original": lambda net, x, view: x.mul_(2),
    "nothing": lambda net, x, view: None,
}


MODES = (torch.no_grad, torch.inference_mode, torch.enable_grad)
REORDER = (False, "host", "threads")


@pytest.mark.parametrize("inside", [True, False], ids=["emulated", "outside"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", VIEWS)
def test_one_memory(kind: str, mode: Any, inside: bool) -> None:
    """The caller, the code and later layers see what they would see on one device.

    Launchers go round: each meets every kind inside and outside, in one of the modes.
    """
    reorder = REORDER[(list(VIEWS).index(kind) + MODES.index(mode) + inside) % len(REORDER)]
    for write in WRITES if kind != "wider" else ["nothing", "original"]:  # torch writes no expanded tensors

        def code(net: Any, x: Tensor, write: str = write) -> Tensor:
            view = net.view(x)
            kept = view * 1
            WRITES[write](net, x, view)
            out: Tensor = net.b(x) + net.c(view.reshape(-1)[:8] * 1).sum() + kept.mean()
            return out

        layers = {
            "view": lambda: View(VIEWS[kind]),
            "write": lambda: nn.ReLU(inplace=True),
            "b": linear,
            "c": linear,
        }
        build = seeded(lambda code=code, layers=layers: Net(code, layers).double())
        graph = captured_graph(build(), noise(3, 8).double())
        for where in ({"": 0}, {"": 0, "b": 1}, {"": 1, "c": 0}, {"": 0, "c": 1, "b": 1}):
            plain, model = build(), build()
            given, expected_given = noise(3, 8).double(), noise(3, 8).double()
            cluster = distribute(model, given.clone(), where, [], reorder=reorder, graph=graph)
            with mode():
                expected = plain(expected_given)
                with cluster if inside else nullcontext():
                    found = model(given)
            assert torch.equal(found, expected) and torch.equal(given, expected_given), (write, where)
            assert found.is_inference() == expected.is_inference()


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("inside", [True, False], ids=["emulated", "outside"])
@pytest.mark.parametrize("kind", VIEWS)
def test_gradients(kind: str, inside: bool, reorder: Any) -> None:
    """They take the way that the layer's own code says."""

    def code(net: Any, x: Tensor) -> Tensor:
        view = net.view(x)
        out: Tensor = net.b(x) + net.c(view.reshape(-1)[:8] * 1).sum() + view.mean()
        return out

    layers = {"view": lambda: View(VIEWS[kind]), "b": linear, "c": linear}
    build = seeded(lambda: Net(code, layers).double())
    graph = captured_graph(build(), noise(3, 8).double())
    for where in ({"": 0, "b": 1}, {"": 1, "c": 0}, {"": 0, "c": 1, "b": 1}):
        plain, model = build(), build()
        given, expected_given = (noise(3, 8).double().requires_grad_() for _ in range(2))
        cluster = distribute(model, noise(3, 8).double(), where, [], reorder=reorder, graph=graph)
        plain(expected_given).sum().backward()
        with cluster if inside else nullcontext():
            model(given).sum().backward()
        assert given.grad is not None and expected_given.grad is not None
        assert torch.equal(given.grad, expected_given.grad)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert one.grad is not None and torch.equal(one.grad, other.grad)  # type: ignore[arg-type]


def test_composite_operators_in_inference_mode() -> None:
    """Torch hands them to the emulation in one piece there: what they call counts, as in any other mode."""

    def code(net: Any, x: Tensor) -> Tensor:
        halves = net.a(x).t().reshape(-1).chunk(2)
        attended, _ = net.b(x, x, x)
        out: Tensor = net.c(attended).unflatten(1, (2, 4)).sum() + halves[0].sum()
        return out

    layers = {"a": linear, "b": lambda: nn.MultiheadAttention(8, 2), "c": linear}
    build = seeded(lambda: Net(code, layers).double().eval())
    for where in ({"": 0}, {"": 0, "b": 1}):
        model = build()
        cluster = distribute(model, noise(4, 8).double(), where, [])
        with torch.inference_mode():
            expected = build()(noise(4, 8).double())
        took = []
        for mode in (torch.no_grad, torch.inference_mode):
            with cluster, mode():
                assert torch.equal(model(noise(4, 8).double()), expected)
            took.append(
                [(span.layer, span.where) for span in cluster.emulation.timeline(by_operator=True).spans]
            )
        assert took[0] == took[1]
