"""Layers, containers and models that are compiled."""

import contextvars
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import seeded
from run.drop_in.chain import chain, spread, values
from run.every_way import Rig, Way, batch, every_way, same
from run.launched import runtime_of
from same import identical
from torch import Tensor, nn

import baechi

RUNS: list[Any] = []
"""Calls of code that was compiled."""


def noting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """A backend that changes nothing, but for noting each call of what it compiled."""

    def run(*args: Any) -> Any:
        RUNS.append(graph)
        return graph(*args)

    return run


def wrapped() -> nn.Module:
    """A layer and a container that were compiled, and replaced."""
    model = Rig()
    model.first.left[2] = torch.compile(model.first.left[2], backend=noting)
    model.side = torch.compile(model.side, backend=noting)
    return model


def in_place() -> nn.Module:
    """A layer and containers that were compiled, and are the same objects."""
    model = Rig()
    for part in (model.first.left[2], model.side, model.second):
        part.compile(backend=noting)
    return model


def altogether() -> nn.Module:
    """A whole model that was compiled."""
    model = Rig()
    model.compile(backend=noting)
    return model


COMPILED = {build.__name__: seeded(build) for build in (wrapped, in_place, altogether)}


@pytest.mark.parametrize("how", COMPILED)
@every_way
def test_compiled_parts(way: Way, how: str) -> None:
    """Compiled layers, containers and models; outside of `with` compiled layers run compiled, as they did."""

    def run(model: nn.Module) -> Any:
        outs = []
        for seed in range(2):
            out = model(batch(seed=seed))
            out.pow(2).sum().backward()
            outs.append(out.detach())
        return outs

    model = same(way, run, build=COMPILED[how])
    torch._dynamo.reset()
    RUNS.clear()
    model(batch())
    assert len(RUNS) == {"wrapped": 2, "in_place": 3, "altogether": 0}[how]


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
    """A model that was compiled in place calls our wrapper: the compiler went on into the runtime, compiled
    half of it, and ended in an endless recursion. Now it stops there; such a model runs as it was written."""
    plain, model = chain(), chain()
    for each in (plain, model):
        each.get_submodule("b").compile(backend=noting)
        each.compile(backend=noting)
    cluster = spread(model)
    with cluster:
        assert identical(plain(values()), model(values()))
    assert identical(plain(values()), model(values()))
    assert runtime_of(model).counts["deferred"]


def test_backward_of_compiled_code_on_several_devices() -> None:
    """Each device's thread ran compiled code in the one context that torch stashes, which Python lets one
    thread enter: the second one raised. Now each runs in a copy of it."""
    spread(chain())
    found: list[Any] = []

    def read() -> None:
        found.append(torch._C._get_obj_in_tls("context"))

    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: read())
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(3)
    y.sum().backward()
    (context,) = found
    assert context.run(lambda: context.run(variable.get)) == 3


def test_the_compiler_traced_hooks() -> None:
    """A model on one device has hooks on its root: the compiler traced them, gave up, and warned. Now it
    leaves them alone, and compiles the model between them."""
    model = baechi.distribute(chain(), values(), cluster=baechi.Cluster.virtual(2), placer="single")
    expected = model(values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = torch.compile(model, backend=noting)
        assert compiled(whole, values()) == 1
    assert identical(whole(values()), expected)
