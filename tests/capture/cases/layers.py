"""What is a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from capture.cases.case import BOTH, Net, case, linear, linears, rows
from torch import Tensor, nn
from torch.nn import functional as F


def attend(m: Any, x: Tensor) -> Tensor:
    weights = torch.softmax(m.q(x) @ m.k(x).transpose(1, 2), -1)
    out: Tensor = m.o(weights @ m.v(x))
    return out


class Attention(Net):
    def __init__(self) -> None:
        super().__init__(attend, **linears("qkvo"))


@case(*BOTH)
def attention_is_whole() -> tuple[Any, ...]:
    """Products are the attention's own work, and q, k and v are single layers: no branches.

    It keeps q, k, v and what o gets (96 each), and the weights (72).
    """
    parts = {"a": linear(), "attention": Attention(), "b": linear()}
    return Net(lambda m, x: m.b(m.attention(m.a(x))), **parts), rows(2, 3, 4)


@case(True)
def attention_of_the_root_is_decomposed() -> tuple[Any, ...]:
    """The root is never kept whole by itself: who distributes it wants it in pieces."""
    return Attention(), rows(2, 3, 4)


@case(False, whole=("Attention",))
def the_root_is_whole_if_the_user_says_so() -> tuple[Any, ...]:
    """One node has everything."""
    return Attention(), rows(2, 3, 4)


class Weighted(Net):
    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__(function, **parts)
        self.weight = nn.Parameter(torch.ones(4, 4))


@case(*BOTH)
def einsum_is_whole() -> tuple[Any, ...]:
    """A layer whose output an einsum multiplies with a weight of the module's own."""
    mixer = Weighted(lambda m, x: torch.einsum("bi,ij->bj", m.inner(x), m.weight), inner=linear())
    return Net(lambda m, x: m.a(m.mixer(x)), mixer=mixer, a=linear()), rows()


@case(True)
def a_bare_weight_in_a_composite_is_of_the_op_that_reads_it() -> tuple[Any, ...]:
    """Light work on a weight of its own: the functional op owns it, and lies with its largest input."""
    scaled = Net(lambda m, x: m.inner(x) * m.scale, inner=linear(), scale=nn.Parameter(torch.ones(4)))
    return Net(lambda m, x: m.a(m.scaled(x)), scaled=scaled, a=linear()), rows()


def unroll(m: Any, x: Tensor) -> Tensor:
    hidden = x[:, 0]
    for step in range(3):
        hidden = m.cell(x[:, step], hidden)
    return hidden


@case(False)
def recurrence_over_one_cell_is_whole() -> tuple[Any, ...]:
    """Each call of the cell needs the one before."""
    loop = Net(unroll, cell=nn.RNNCell(4, 4))
    return Net(lambda m, x: m.a(m.loop(x)), loop=loop, a=linear()), rows(2, 3, 4)


@case(False)
def recurrence_in_the_root_is_decomposed() -> tuple[Any, ...]:
    """A node for each call, all in one group."""
    return Net(unroll, cell=nn.RNNCell(4, 4)), rows(2, 3, 4)


def pipeline(m: Any, x: Tensor) -> Tensor:
    for _ in range(2):
        x = m.c(m.b(m.a(x)))
    return x


@case(False)
def recurrence_over_three_cells_is_a_pipeline() -> tuple[Any, ...]:
    """The three could lie on three devices."""
    return Net(lambda m, x: m.cells(x), cells=Net(pipeline, **linears("abc"))), rows()


@case(False)
def recurrence_over_two_cells_is_whole() -> tuple[Any, ...]:
    """Two are no pipeline."""

    def twice(m: Any, x: Tensor) -> Tensor:
        for _ in range(2):
            x = m.b(m.a(x))
        return x

    return Net(lambda m, x: m.h(m.cells(x)), cells=Net(twice, **linears("ab")), h=linear()), rows()


@case(False)
def calls_that_need_not_each_other_are_no_recurrence() -> tuple[Any, ...]:
    """A layer that is called on two inputs; the module around it does light work only."""
    pair = Net(lambda m, x, y: m.a(x) + m.a(y), a=linear())
    return Net(lambda m, x: m.pair(m.b(x), m.c(x)), b=linear(), c=linear(), pair=pair), rows()


def towers(m: Any, x: Tensor) -> Tensor:
    one, other = m.a2(m.a1(m.a0(x))), m.b2(m.b1(m.b0(x)))
    joint: Tensor = one @ other.transpose(0, 1)
    return joint


@case(False)
def two_towers_with_a_heavy_joint_are_decomposed() -> tuple[Any, ...]:
    """Three layers in a row beside three others are branches, whatever joins them."""
    parts = {f"{tower}{level}": linear() for tower in "ab" for level in range(3)}
    return Net(lambda m, x: m.towers(x), towers=Net(towers, **parts)), rows()


@case(False)
def two_short_towers_with_a_heavy_joint_are_whole() -> tuple[Any, ...]:
    """Two layers in a row are no branch."""

    def short(m: Any, x: Tensor) -> Tensor:
        out: Tensor = m.b(m.a(x)) @ m.d(m.c(x)).transpose(0, 1)
        return out

    return Net(lambda m, x: m.towers(x), towers=Net(short, **linears("abcd"))), rows()


@case(False)
def many_layers_are_decomposed() -> tuple[Any, ...]:
    """A product of its own does not keep a module of nine layers whole."""

    def chain(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = layer(x)
        return x @ x.transpose(0, 1)

    nine = Net(chain, layers=nn.ModuleList([linear() for _ in range(9)]))
    return Net(lambda m, x: m.nine(x), nine=nine), rows()


@case(True)
def no_weights_is_whole() -> tuple[Any, ...]:
    """An activation and a scaling, in a module of their own: one layer."""
    light = nn.Sequential(nn.Tanh(), nn.Softmax(-1))
    return Net(lambda m, x: m.b(m.light(m.a(x))), a=linear(), light=light, b=linear()), rows()


def residual(m: Any, x: Tensor) -> Tensor:
    return x + m.second(torch.relu(m.first(x)))


@case(*BOTH)
def light_glue_is_decomposed() -> tuple[Any, ...]:
    """The sum lies with the newer of its two inputs, which are equally large."""
    return nn.Sequential(linear(), Net(residual, first=linear(), second=linear())), rows()


class Residual(Net):
    def __init__(self) -> None:
        super().__init__(residual, first=linear(), second=linear())


@case(*BOTH, whole=("Residual",))
def names_of_the_user_win() -> tuple[Any, ...]:
    """Kept whole for its name, though its work is light; both blocks do the same."""
    return nn.Sequential(Residual(), Residual()), rows()


@case(False)
def experts_are_decomposed() -> tuple[Any, ...]:
    """A router, and experts of two layers that are mixed: light work over two branches."""

    def mixed(m: Any, x: Tensor) -> Tensor:
        shares = m.router(x).softmax(-1)
        out: Tensor = m.one(x) * shares[:, :1] + m.other(x) * shares[:, 1:]
        return out

    experts = {name: nn.Sequential(linear(4, 8), nn.ReLU(), linear(8, 4)) for name in ("one", "other")}
    return Net(lambda m, x: m.moe(x), moe=Net(mixed, router=linear(4, 2), **experts)), rows()


@case(False)
def experts_that_are_chosen() -> tuple[Any, ...]:
    """Rows are gathered by value, so it runs with real ones; the expert that gets none is not run."""

    def routed(m: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for index, expert in enumerate(m.experts):
            (chosen,) = torch.where(x[:, 0] == index)
            if len(chosen):
                out.index_add_(0, chosen, expert(x[chosen]))
        return out

    model = Net(lambda m, x: routed(m, m.a(x)), a=nn.Identity(), experts=nn.ModuleList([linear(), linear()]))
    return model, rows()


@case(False)
def fused_attention_is_a_layer() -> tuple[Any, ...]:
    """Torch's own: its code reads the weights of its children behind their backs."""
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Net(lambda m, x: m.attention(x, x, x, need_weights=False)[0], attention=attention), rows(2, 3, 4)


@case(True)
def a_layer_that_reads_its_childs_weight() -> tuple[Any, ...]:
    """It calls no child: so it is a layer, not glue around one that never ran."""
    reads = Net(lambda m, x: F.linear(x, m.inner.weight), inner=linear())
    return Net(lambda m, x: m.a(m.reads(x)), reads=reads, a=linear()), rows()


@case(*BOTH)
def a_torch_encoder_layer_and_a_head() -> tuple[Any, ...]:
    """`nn.TransformerEncoderLayer` is whole, the stack around it is not."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(stack, linear()), rows(2, 3, 4)


class Scaled(torch.autograd.Function):
    """A product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradients[0] * scale, gradients[0] * x
