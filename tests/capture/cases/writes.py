"""Layers and glue that write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from capture.cases.case import BOTH, Net, case, linear, linears, rows
from capture.cases.layers import Scaled
from torch import Tensor, nn


@case(*BOTH)
def layer_that_writes_in_place() -> tuple[Any, ...]:
    """It makes nothing, lies where what it writes lies, and follows who read it before."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        seen = m.reader(hidden)
        return m.b(m.relu(hidden)) + seen

    parts = {"relu": nn.ReLU(inplace=True)}
    return Net(forward, **linears("ab"), reader=nn.Softmax(-1), **parts), rows()


@case(*BOTH)
def glue_that_writes_in_place() -> tuple[Any, ...]:
    """`h += ..` goes on from the layer that made `h`, and whoever reads `h` comes after."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        hidden += m.b(x)
        return m.c(hidden)

    return Net(forward, **linears("abc")), rows()


@case(False)
def readers_before_and_after_a_write() -> tuple[Any, ...]:
    """Earlier readers hold the writer back, later ones read what it wrote, and the next writer
    waits for these."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        early = m.b(hidden)
        hidden.mul_(2)
        late = m.c(hidden)
        hidden.zero_()
        return early + late + m.d(hidden)

    return Net(forward, **linears("abcd")), rows()


@case(False)
def a_write_through_a_view() -> tuple[Any, ...]:
    """Half of it is written; whoever reads all of it reads what was written."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        hidden[:, :2].mul_(2)
        return m.b(hidden)

    return Net(forward, **linears("ab")), rows()


@case(False)
def a_view_whose_base_is_written() -> tuple[Any, ...]:
    """Who reads the view afterwards reads what was written; 16 bytes of the 32 travel."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        half = hidden[:, :2]
        hidden.add_(1)
        return m.b(half)

    return Net(forward, a=linear(), b=linear(2, 4)), rows()


@case(True)
def an_item_that_is_set() -> tuple[Any, ...]:
    """`h[:, 0] = ..` lies with `h`, whatever it is set to."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        hidden[:, 0] = m.b(x)[:, 1]
        return m.c(hidden)

    return Net(forward, **linears("abc")), rows()


class Buffered(Net):
    """With a buffer `seen`."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__(function, **parts)
        self.register_buffer("seen", torch.zeros(2, 4))


@case(True)
def a_copy_into_a_buffer() -> tuple[Any, ...]:
    """The buffer lies with who writes it first; who reads it afterwards reads what was copied."""

    def forward(m: Any, x: Tensor) -> Tensor:
        m.seen.copy_(m.a(x).detach())
        return m.b(x) + m.seen

    return Buffered(forward, **linears("ab")), rows()


@case(True)
def a_buffer_that_is_read_and_then_written() -> tuple[Any, ...]:
    """As an average over steps is."""

    def forward(m: Any, x: Tensor) -> Tensor:
        out: Tensor = m.a(x) + m.seen
        with torch.no_grad():
            m.seen.mul_(0.5)
        return out

    return Buffered(forward, a=linear()), rows()


@case(*BOTH)
def statistics_of_a_norm() -> tuple[Any, ...]:
    """They are its own business: nobody else's memory is written.

    Weights 2 x 16; buffers 2 x 16 and a counter of 8.
    """
    return nn.Sequential(linear(), nn.BatchNorm1d(4), linear()), rows()


@case(False)
def a_result_that_is_written_to_an_argument() -> tuple[Any, ...]:
    """`out=`: who makes the memory is not who fills it."""

    def forward(m: Any, x: Tensor) -> Tensor:
        one, other = m.a(x), m.b(x)
        early = m.c(one)
        torch.add(one, other, out=one)
        return m.d(one) + early

    return Net(forward, **linears("abcd")), rows()


@case(False)
def a_result_that_is_written_to_new_memory() -> tuple[Any, ...]:
    """Memory that is made of nothing has no place, until it is written: then it is the writer's."""

    def forward(m: Any, x: Tensor) -> Tensor:
        out = torch.empty(2, 4)
        torch.mul(m.a(x), m.b(x), out=out)
        return m.c(out)

    return Net(forward, **linears("abc")), rows()


@case(True)
def a_function_with_a_backward_of_its_own() -> tuple[Any, ...]:
    """All of its inputs lie together: what its backward reads cannot be brought there."""
    return Net(lambda m, x: m.c(Scaled.apply(m.a(x), m.b(x))), **linears("abc")), rows()


@case(False)
def an_input_that_is_written() -> tuple[Any, ...]:
    """It lies outside the model: nobody holds it, and readers keep their order."""

    def forward(m: Any, x: Tensor) -> Tensor:
        early = m.a(x)
        x.add_(1)
        return early + m.b(x)

    return Net(forward, **linears("ab")), rows()
