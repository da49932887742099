"""Bugs that were, each with its story: what others do with a model and around it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.launched import runtime_of
from same import identical
from torch import Tensor, nn
from torch.autograd import forward_ad

import baechi
from baechi.errors import BaechiError


class Chain(nn.Module):
    """Two layers and one beside them, which the plans here launch first: so the others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b, self.c = (
            nn.Linear(4, 4),
            nn.ReLU(inplace=True),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.b(self.act(self.a(x)))
        return h + self.c(x)


def chain() -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return Chain()


def values() -> Tensor:
    """An input that is always the same."""
    return torch.linspace(-1, 1, 12).view(3, 4)


def spread(model: nn.Module) -> baechi.Cluster:
    """Distribute a model over two devices, in this order; returns them."""
    return distribute(model, values(), {"a": 0, "act": 0, "b": 1, "c": 0}, ("c", "a", "act", "b"))


def test_hooks_saw_what_hooks_before_them_had_deferred() -> None:
    """Hooks got real values, but the first of several may compute with what a layer wrote in place and
    that waited: the second was handed a deferred value. And so may a hook that calls another layer."""
    seen: list[type] = []

    def scale(module: Any, args: Any) -> Any:
        return (args[0] * 1.5,)

    def look(module: Any, args: Any) -> None:
        seen.append(type(args[0]))

    plain, model = chain(), chain()
    cluster = spread(model)
    for each in (plain, model):
        each.get_submodule("b").register_forward_pre_hook(lambda module, args, each=each: (each.c(args[0]),))
        each.get_submodule("b").register_forward_pre_hook(scale)
        each.get_submodule("b").register_forward_pre_hook(look)
    with cluster:
        assert identical(plain(values()), model(values()))
    assert seen == [Tensor, Tensor]


@pytest.mark.parametrize("part", ["", "b"], ids=["model", "layer"])
def test_weights_put_in_the_place_of_others_stayed_where_they_were_read_to(part: str) -> None:
    """`load_state_dict(assign=True)` left the weights on the host, and the next call failed."""
    plain, model = chain(), chain()
    cluster = spread(model)
    with cluster:
        for each in (plain, model):
            loaded = each.get_submodule(part)
            loaded.load_state_dict(
                {k: torch.ones(v.shape) for k, v in loaded.state_dict().items()}, assign=True
            )
        assert identical(plain(values()), model(values()))
        assert str(model.get_submodule("b").weight.device) == "cpu:1"
    baechi.restore(model)
    assert not any(module._load_state_dict_post_hooks for module in model.modules())


def test_casts_outside_lost_the_places_of_weights() -> None:
    """Outside of `with`, `model.double()` makes new memory, which no mark says where it lies."""
    plain, model = chain(), chain()
    cluster = spread(model)
    for each in (plain, model):
        each.double()
    with cluster:
        assert identical(plain(values().double()), model(values().double()))


RUNS: list[int] = []
"""Calls of code that was compiled."""


def noting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """A backend that notes each call of what it compiled."""

    def run(*args: Any) -> Any:
        RUNS.append(len(args))
        return graph(*args)

    return run


def compiled(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """How many times compiled code ran in one call."""
    RUNS.clear()
    function(x)
    return len(RUNS)


def test_capture_made_the_compiler_give_up() -> None:
    """Where the compiler meets a dispatch mode, it marks the code as not to be compiled, for good: one
    capture of a model with compiled parts, and nothing of their classes was compiled any more."""
    model = chain()
    model.b = torch.compile(model.b, backend=noting)
    cluster = spread(model)
    with cluster:
        assert compiled(model, values()) == 0
    assert compiled(model, values()) == 1
    assert compiled(torch.compile(nn.Linear(4, 4), backend=noting), values()) == 1


def test_the_compiler_traced_the_runtime() -> None:
    """A part that was compiled in place calls our wrapper: the compiler went on into the runtime, compiled
    half of it, and ended in an endless recursion. Now it stops there; such a part runs as it was written."""
    plain, model = chain(), chain()
    for each in (plain, model):
        each.get_submodule("b").compile(backend=noting)
        each.compile(backend=noting)
    cluster = spread(model)
    with cluster:
        assert identical(plain(values()), model(values()))
    assert identical(plain(values()), model(values()))
    assert runtime_of(model).counts["deferred"]


def test_looking_for_nan_raced_with_gradients_on_their_way() -> None:
    """With `detect_anomaly` autograd reads what each node returns at once; a gradient that was sent had
    not arrived then, so that on real devices NaN could be found where there is none."""
    plain, model = chain(), chain()
    cluster = spread(model)
    plain(values()).sum().backward()
    with cluster, torch.autograd.set_detect_anomaly(True):
        model(values()).sum().backward()
    assert all(identical(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_tangents_were_left_behind() -> None:
    """In forward mode a transfer copied the value and not its tangent: silently there was none any more."""
    plain, model = chain(), chain()
    cluster = spread(model)
    tangents = []
    with cluster, torch.no_grad(), forward_ad.dual_level():
        for each in (plain, model):
            out = each(forward_ad.make_dual(values(), torch.ones(3, 4)))
            tangents.append(forward_ad.unpack_dual(out).tangent)
    assert identical(tangents[0], tangents[1])


def test_exported_models_had_transfers_in_them() -> None:
    """`torch.export` recorded what the runtime did with the example, and so did `torch.jit.trace`."""
    model = chain()
    spread(model)
    with pytest.raises(BaechiError, match="restore"):
        torch.export.export(model, (values(),))
