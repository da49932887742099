"""What layers take and return, and what travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from capture.cases.case import BOTH, Net, case, linear, linears, rows
from torch import Tensor, nn

from baechi.records import Inputs


@dataclass
class Pair:
    """Two tensors and a name."""

    left: Tensor
    right: Tensor
    name: str = "pair"


class Named(NamedTuple):
    """A tensor and what may be none."""

    value: Tensor
    other: Tensor | None


@case(True)
def a_dataclass() -> tuple[Any, ...]:
    """What a layer returns in one is found, and what the next one gets."""
    pair = Net(lambda m, x: Pair(x * 2, x.exp()))
    use = Net(lambda m, p: p.left + p.right)
    return Net(lambda m, x: m.use(m.pair(m.a(x))), a=linear(), pair=pair, use=use), rows()


@case(True)
def a_named_tuple() -> tuple[Any, ...]:
    """With a tensor and a None in it."""
    pair = Net(lambda m, x: Named(x.exp(), None))
    use = Net(lambda m, p: p.value * 2)
    return Net(lambda m, x: m.use(m.pair(m.a(x))), a=linear(), pair=pair, use=use), rows()


@case(False)
def nested_inputs() -> tuple[Any, ...]:
    """Inputs have a node each, named by the path that leads to them."""

    def forward(m: Any, pair: Any, *, extra: Any) -> Any:
        return {"sum": [m.a(pair["left"]) + m.b(pair["both"][1])], "extra": m.c(extra), "none": None}

    inputs = Inputs({"left": rows(), "both": (rows(), rows(3, 4))}, extra=rows(1, 4))
    inputs.args[0]["both"] = (rows(5, 4), rows())
    return Net(forward, **linears("abc")), inputs


@case(True)
def an_optional_argument() -> tuple[Any, ...]:
    """None, a number and a text are no tensors."""
    layer = Net(lambda m, x, mask, scale, mode: x * scale if mask is None else x * mask)
    return Net(lambda m, x: m.layer(m.a(x), None, 0.5, "add"), a=linear(), layer=layer), rows()


@case(False)
def outputs_that_are_no_tensors() -> tuple[Any, ...]:
    """A layer that returns a number beside its tensor."""
    layer = Net(lambda m, x: (x.exp(), x.shape[0]))

    def forward(m: Any, x: Tensor) -> Any:
        out, size = m.layer(m.a(x))
        return m.b(out) * size, size

    return Net(forward, **linears("ab"), layer=layer), rows()


@case(True)
def an_output_of_integers() -> tuple[Any, ...]:
    """Indices take 8 bytes, and have no gradient: an embedding of the best of four."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.embed(m.best(m.a(x)))

    return Net(forward, a=linear(), best=Net(lambda m, x: x.argmax(-1)), embed=nn.Embedding(4, 3)), rows()


@case(True)
def a_region_without_gradients() -> tuple[Any, ...]:
    """Edges lead through it; nothing in it is kept, and what it makes sends no gradient back."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = m.b(m.a(x)).tanh()
        out: Tensor = m.c(x) * teacher
        return out

    return Net(forward, **linears("abc")), rows()


@case(True)
def a_detached_tensor() -> tuple[Any, ...]:
    """The same memory: the edge stays, no node is made, and no gradient goes back."""
    return Net(lambda m, x: m.b(m.a(x).detach()), **linears("ab")), rows()


@case(*BOTH)
def outputs_that_nobody_uses() -> tuple[Any, ...]:
    """A layer hands on both of its outputs, whoever reads them."""
    split = Net(lambda m, x: (x.exp(), x * 2))
    return Net(lambda m, x: m.b(m.split(m.a(x))[0]), a=linear(), split=split, b=linear()), rows()


@case(False)
def an_output_that_is_an_input() -> tuple[Any, ...]:
    """Handed on: nothing is made."""
    return Net(lambda m, x: (m.a(x), x), a=linear()), rows()


@case(False)
def a_layer_that_hands_on_its_input_beside_another() -> tuple[Any, ...]:
    """Who reads what was handed on reads it from who made it, not from who passed it along."""
    layer = Net(lambda m, x: (x, x.exp()))

    def forward(m: Any, x: Tensor) -> Any:
        same, other = m.layer(m.a(x))
        return m.b(same) + m.c(other)

    return Net(forward, **linears("abc"), layer=layer), rows()


@case(True)
def one_tensor_for_three_layers() -> tuple[Any, ...]:
    """One tensor id: it travels once to each device."""
    return Net(lambda m, x: (lambda h: m.b(h) + m.c(h) + m.d(h))(m.a(x)), **linears("abcd")), rows()


@case(True)
def outputs_that_go_different_ways() -> tuple[Any, ...]:
    """Each has an id of its own; views of one storage do as well, and only they travel."""
    split = Net(lambda m, x: x.tanh().chunk(2, 1))

    def forward(m: Any, x: Tensor) -> Any:
        left, right = m.split(m.a(x))
        return m.b(left) + m.c(right)

    return Net(forward, a=linear(4, 6), split=split, b=linear(3, 4), c=linear(3, 4)), rows()


@case(False)
def both_outputs_for_one_layer() -> tuple[Any, ...]:
    """The edge has the bytes of both."""
    split = Net(lambda m, x: (x.exp(), x[:, :1] * 2))
    join = Net(lambda m, x, y: x + y)
    return Net(lambda m, x: m.join(*m.split(m.a(x))), a=linear(), split=split, join=join), rows()


@case(False)
def a_view_that_travels() -> tuple[Any, ...]:
    """A transposed slice is no node, and its own bytes travel."""
    return Net(lambda m, x: m.b(m.a(x)[:, 1:].t()) + 1, a=linear(), b=linear(2, 4)), rows()


@case(False)
def a_mask_of_an_input() -> tuple[Any, ...]:
    """What is made of inputs only lies where the inputs lie: it is bound to nobody."""

    def forward(m: Any, x: Tensor) -> Tensor:
        mask = (x > 0).float()
        return m.a(x) * mask

    return Net(forward, a=linear()), rows()


@case(False)
def a_constant_made_of_nothing() -> tuple[Any, ...]:
    """It has no place, and belongs to its first user: no node."""
    return Net(lambda m, x: m.a(x) + torch.arange(4.0) * 2, a=linear()), rows()


@case(True)
def a_diamond_through_glue() -> tuple[Any, ...]:
    """Two layers read what a piece of glue made."""
    return Net(lambda m, x: (lambda h: m.d(m.b(h) + m.c(h)))(m.a(x) * 2), **linears("abcd")), rows()
