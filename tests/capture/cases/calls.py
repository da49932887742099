"""What is called, in which order, and how often."""

from __future__ import annotations

from typing import Any

import torch
from capture.cases.case import BOTH, Net, case, linear, linears, rows
from torch import Tensor, nn

from baechi.records import Inputs


@case(*BOTH)
def a_layer_that_is_called_again() -> tuple[Any, ...]:
    """Two nodes in one group; the weights are those of the first, which comes last in backward, and
    holds another gradient and the sum."""
    return Net(lambda m, x: m.a(m.b(m.a(x))), **linears("ab")), rows()


@case(True)
def an_activation_that_all_layers_share() -> tuple[Any, ...]:
    """Its calls are one group."""
    return Net(lambda m, x: m.act(m.b(m.act(m.a(x)))), **linears("ab"), act=nn.Tanh()), rows()


@case(False)
def layers_in_reverse_order() -> tuple[Any, ...]:
    """Code order is that of the calls, not of the registration."""

    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in reversed(m.layers):
            x = layer(x)
        return x

    return Net(forward, layers=nn.ModuleList([linear(), linear(), linear()])), rows()


@case(False)
def layers_of_a_generator() -> tuple[Any, ...]:
    """What is run while the sum asks for it."""
    return Net(lambda m, x: torch.stack([layer(x) for layer in m.children()]).sum(0), **linears("ab")), rows()


@case(False)
def an_early_exit() -> tuple[Any, ...]:
    """The code looks at a value; what did not run takes memory, and no time."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden: Tensor = m.a(x)
        return m.exit(hidden) if x.sum() > 0 else m.exit(m.b(hidden))

    return Net(forward, **linears("ab"), exit=linear(4, 2)), rows()


@case(True)
def an_unused_layer_lies_with_its_sibling() -> tuple[Any, ...]:
    """With the layer that shares the longest path, not with the first of all."""
    block = Net(lambda m, x: m.used(x), idle=linear(4, 8), used=linear())
    return Net(lambda m, x: m.block(m.a(x)), a=linear(), block=block), rows()


def choice(m: Any, x: Tensor, wide: bool) -> Tensor:
    hidden = m.a(x)
    hidden = m.b(hidden) if wide else m.c(hidden)
    out: Tensor = m.d(hidden * 2)
    return out


@case(*BOTH)
def the_union_of_two_paths() -> tuple[Any, ...]:
    """Both branches and what joins them; the piece of glue behind each is its own."""
    return Net(choice, **linears("abcd")), Inputs(rows(), True), Inputs(rows(), False)


@case(False)
def the_union_of_two_paths_the_other_way_round() -> tuple[Any, ...]:
    """The first example decides on the order of the nodes."""
    return Net(choice, **linears("abcd")), Inputs(rows(), False), Inputs(rows(), True)


@case(False)
def the_union_of_two_orders() -> tuple[Any, ...]:
    """What would make a cycle is left out: the first order stays."""

    def forward(m: Any, x: Tensor, swap: bool) -> Tensor:
        out: Tensor = m.a(m.b(x)) if swap else m.b(m.a(x))
        return out

    return Net(forward, **linears("ab")), Inputs(rows(), False), Inputs(rows(), True)


@case(False)
def the_union_of_two_sizes() -> tuple[Any, ...]:
    """The larger amounts of the two."""
    return nn.Sequential(linear(), nn.ReLU()), Inputs(rows(2, 4)), Inputs(rows(5, 4))


@case(False)
def the_union_of_an_idle_and_a_busy_run() -> tuple[Any, ...]:
    """What one example leaves idle runs in the other: it is no longer bound to its sibling."""

    def forward(m: Any, x: Tensor, more: bool) -> Tensor:
        hidden: Tensor = m.a(x)
        return m.extra(hidden) if more else hidden

    return Net(forward, a=linear(), extra=linear(4, 2)), Inputs(rows(), False), Inputs(rows(), True)
