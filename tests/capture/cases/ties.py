"""Weights that are shared, read by glue, computed or frozen."""

from __future__ import annotations

from typing import Any

import torch
from capture.cases.case import BOTH, Net, case, linear, linears, rows
from capture.cases.writes import Buffered
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


@case(*BOTH)
def tied_weights() -> tuple[Any, ...]:
    """One group; the bytes are the first one's, which has a second gradient and a sum to hold."""
    model = Net(lambda m, t: m.head(m.mid(m.embed(t))), embed=nn.Embedding(10, 4), mid=linear())
    model.head = nn.Linear(4, 10, bias=False)
    model.head.weight = model.embed.weight
    return model, torch.zeros(2, 3, dtype=torch.long)


@case(True)
def tied_views() -> tuple[Any, ...]:
    """Two weights that are views of one storage: it is counted once, and they lie together.

    By storage both have another gradient to hold, which is more than each takes.
    """
    both = torch.ones(2, 4, 4)
    model = Net(lambda m, x: m.c(m.b(m.a(x))), **linears("abc"))
    for layer, view in ((model.a, both[0]), (model.c, both[1])):
        layer.weight, layer.bias = nn.Parameter(view), None
    return model, rows()


@case(True)
def a_weight_that_glue_reads_too() -> tuple[Any, ...]:
    """Glue reads the layer's weight where the layer has it: the weight may travel."""
    return Net(lambda m, x: m.a(x) * m.a.bias + m.b(x), **linears("ab")), rows()


@case(True)
def a_weight_that_glue_reads_first() -> tuple[Any, ...]:
    """Then the layer joins it there."""
    return Net(lambda m, x: m.a(x * m.a.bias), a=linear()), rows()


@case(True)
def a_class_token() -> tuple[Any, ...]:
    """A parameter of the root belongs to the glue that reads it first."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(torch.cat([m.token.expand(2, 1, 4), m.a(x)], 1) + m.places)

    weights = {"token": nn.Parameter(torch.ones(1, 1, 4)), "places": nn.Parameter(torch.ones(4, 4))}
    return Net(forward, **linears("ab"), **weights), rows(2, 3, 4)


@case(True)
def a_weight_that_is_given_to_layers() -> tuple[Any, ...]:
    """A parameter of the root, passed to two layers: it lies with the first, and travels to the other."""
    give = {name: Net(lambda m, x, w: x * w) for name in "ab"}
    return Net(lambda m, x: m.b(m.a(x, m.w), m.w), w=nn.Parameter(torch.ones(4)), **give), rows()


@case(True)
def a_module_under_two_names() -> tuple[Any, ...]:
    """One module registered twice goes by its first name."""
    layer = linear()
    return Net(lambda m, x: m.second(m.first(x)), first=layer, second=layer), rows()


@case(False)
def a_shared_buffer() -> tuple[Any, ...]:
    """Two layers that have the same buffer lie together; its bytes are the first one's."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return x + m.seen

    one, other = Buffered(forward), Buffered(forward)
    other.seen = one.seen
    return Net(lambda m, x: m.b(m.a(m.one(x))) + m.other(x), one=one, **linears("ab"), other=other), rows()


@case(*BOTH)
def a_weight_that_is_computed() -> tuple[Any, ...]:
    """Weight normalization happens inside the layer: 16 for the lengths, 64 for the directions."""
    return nn.Sequential(weight_norm(linear()), linear()), rows()


@case(True)
def a_spectral_norm() -> tuple[Any, ...]:
    """Its buffers are written in training: its own business."""
    return nn.Sequential(spectral_norm(linear()), linear()), rows()


@case(True)
def a_frozen_part() -> tuple[Any, ...]:
    """No gradients of its weights; what it makes needs none, and is not kept but by who needs it."""
    frozen = nn.Sequential(linear(), nn.Tanh()).requires_grad_(False)
    return nn.Sequential(frozen, linear(), nn.Tanh()), rows()


@case(True)
def a_frozen_layer_in_between() -> tuple[Any, ...]:
    """Gradients pass through it; it keeps no input, for it has no gradient of its own to compute."""
    model = nn.Sequential(linear(), linear(), linear())
    model[1].requires_grad_(False)
    return model, rows()
