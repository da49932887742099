"""Models whose layers take and return structures; modules that are called again, or not at all."""

import copy
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from architectures.base import noise
from run.launch.reordering.case import LINEARS, case
from run.launch.reordering.models import linear
from same import ROUNDING
from torch import Tensor, nn
from torch.nn import functional as F

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Both:
    """Two tensors and a number."""

    first: Tensor
    second: Tensor
    scale: float = 0.5


class Returns(nn.Module):
    """A layer that returns several tensors in some container."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, *, scale: Tensor | None = None, parts: Any = ()) -> Any:
        y, z = x + self.weight, x * self.weight
        y = y if scale is None else y * scale
        z = sum((part for row in parts for part in row["in"]), z)
        if self.kind == "dict":
            return {"y": y, "more": [z, None, {"z": z}], "number": None}
        if self.kind == "dataclass":
            return Both(y, z)
        return Pair(y, z) if self.kind == "named" else (y, z)


@case(
    t=lambda: Returns("tuple"), d=lambda: Returns("dict"), c=lambda: Returns("dataclass"), a=linear,
    n=lambda: Returns("named"), lstm=lambda: nn.LSTM(8, 8, batch_first=True), b=linear, e=linear,
    tolerance=ROUNDING,
)  # fmt: skip
def several_outputs(net: Any, x: Tensor) -> Any:
    y, z = net.t(net.a(x))
    mapped = net.d(z, scale=y, parts=[{"in": (x, y)}, {"in": [z]}])
    named = net.n(mapped["y"])
    both = net.c(named.second, parts=({"in": [named.first]},))
    out, (hidden, memory) = net.lstm(both.first[None])
    b, e = net.b(x), net.e(x)
    net.notes += [type(named) is Pair, both.scale, mapped["number"], mapped["more"][1]]
    return {"out": [out, (hidden, memory)], "both": both, "rest": mapped["more"][2]["z"] + b + e}


@case(a=linear, b=linear, shared=linear, c=linear, d=linear, tolerance=ROUNDING)
def called_several_times(net: Any, x: Tensor) -> Tensor:
    a = net.shared(net.a(x))
    b = net.shared(net.b(x))
    c = net.shared(a + b)
    d: Tensor = net.d(x)
    return c + net.c(a) + d


@case(layers=lambda: nn.ModuleList([nn.Linear(8, 8) for _ in range(6)]), tolerance=ROUNDING)
def a_list_in_any_order(net: Any, x: Tensor) -> Tensor:
    outputs = [layer(x) for layer in reversed(net.layers)]
    outputs = [net.layers[number](outputs[number - 1]) for number in (3, 0, 5)] + outputs
    return torch.stack(outputs).sum(0)


@case(**LINEARS, f=linear, inputs=lambda: {"x": noise(3, 8), "skip": noise(1)})
def branches_not_taken(net: Any, x: Tensor, skip: Tensor) -> Tensor:
    a = net.a(x)
    b = net.b(a) if skip > 5 else a
    c: Tensor = net.c(x) + net.e(x) * net.f(x)
    if skip < 5:
        return b + c
    d: Tensor = net.d(x)
    return b + c + d


@case(a=linear, b=lambda: nn.Dropout(0.5), c=linear, d=lambda: nn.Dropout(0.3), e=linear)
def drawn(net: Any, x: Tensor) -> Tensor:
    a = net.b(net.a(x))
    c = net.d(net.c(x))
    f = F.dropout(net.e(x), 0.4, net.training)
    n = torch.randn_like(f) * f
    d: Tensor = net.b(c)
    return a + c + f + n + d


@case(a=linear, b=linear, c=lambda: torch.compile(nn.Linear(8, 8), backend="eager"), d=linear)
def compiled_child(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    c = net.c(a)
    b, d = net.b(x), net.d(x)
    result: Tensor = b + c * d
    return result


@case(**LINEARS)
def tensors_as_objects(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    table = {a: "a", b: "b"}
    a.tag = "mine"
    alive = weakref.ref(b)
    c = net.c(a)
    d: Tensor = net.d(x)
    e = net.e(x)
    float(c.sum())
    net.notes += [table[a], table[b], a.tag, alive() is b, copy.copy(b) is b]
    return a + b + c + d + e


@case(**LINEARS)
def a_mode_of_the_code(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.device("cpu"):
        b = net.b(a) + torch.ones(8)
    c = net.c(x)
    result: Tensor = b + c * net.d(x)
    return result


@case(**LINEARS)
def sent_to_devices_and_dtypes(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    c = a.to(b.device).double() + b.to(torch.float64)
    d = net.c(c.float()).type_as(b).to(b)
    e: Tensor = net.e(x)
    return d + e + net.d(x)
