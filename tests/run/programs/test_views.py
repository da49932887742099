"""Views that show what they are given are left out, and nothing else is."""

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from baechi.run.programs.views import leave_out_views


def left(function: object, *args: Tensor) -> list[str]:
    """The operators that are left, which give the same."""
    module: fx.GraphModule = make_fx(function)(*args)  # type: ignore[arg-type]
    before = module(*args)
    leave_out_views(module.graph)
    module.recompile()
    assert torch.equal(module(*args), before) and module(*args).stride() == before.stride()
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


X = torch.randn(3, 4)
A = torch.ops.aten


def test_left_out() -> None:
    assert left(lambda x: A.t(A.t(x)) + 1, X) == ["aten.t.default", "aten.add.Tensor"]
    assert left(lambda x: A.detach(x.view(3, 4)[:, 0:4].expand(3, 4)) + 1, X) == ["aten.add.Tensor"]
    twice = left(lambda x: A.transpose(A.transpose(x, 0, 1), -1, -2) + 1, X)
    assert twice == ["aten.transpose.int", "aten.add.Tensor"]


def test_kept() -> None:
    others = [
        lambda x: x.view(4, 3) + 1,
        lambda x: A.slice(x, 1, 1, 3) + 1,
        lambda x: A.transpose(A.transpose(x[None], 0, 1), 1, 2) + 1,
        lambda x: A.clone(x) + 1,
        lambda x: A.detach(x),
    ]
    for one in others:
        assert len(left(one, X)) == len([node for node in make_fx(one)(X).graph.nodes if "call" in node.op])
