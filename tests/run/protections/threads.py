"""Threads for what waits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from run.protections.models import Shift, linears, shifts
from run.protections.rows import ERROR, NUMBERS, nothing, row, when_called_by
from run.protections.scenarios import scenario
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from baechi.run.launch import thread_launcher


class Deep(Shift):
    """Makes more autograd nodes than one."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(x)
        return super().forward(x)


def hand_over_without_waiting() -> tuple[Any, str, Any]:
    """The host goes on at once."""

    original = thread_launcher._Worker._hand_over

    def hand_over(self: Any, task: Any) -> None:
        if task is None:
            original(self, task)
        else:
            self._task = task
            self._go.set()

    return thread_launcher._Worker, "_hand_over", hand_over


@scenario(
    row("nodes are numbered as the host's", r"backward", (thread_launcher, "_number_as_ours", nothing)),
    row("the host's numbers are apart from the threads'", r"backward", (thread_launcher, "_APART", 0)),
    row("a thread has launched when the host goes on", ERROR, hand_over_without_waiting()),
    row("threads end with the step", r"threads", (thread_launcher._Worker, "end", nothing)),
    layers={**shifts("hbc"), "a": Deep},
    order="hbac",
    launched="h b a c",
    backward="c a b h",
    launchers=("threads",),
)
def in_a_thread(net: Any, x: Tensor) -> Tensor:
    h = net.h(x)
    a = net.a(h)
    b, c = net.b(x), net.c(x)
    result: Tensor = h + a + b + c
    return result


def in_the_thread(function: str) -> tuple[Any, str, Any]:
    """Threads for what waits do not call a function of torch's."""
    return torch, function, when_called_by("_work", nothing, getattr(torch, function))


@scenario(
    row(
        "leaving autocast in a thread",
        NUMBERS,
        in_the_thread("autocast_increment_nesting"),
        in_the_thread("autocast_decrement_nesting"),
    ),
    layers=linears("ab"),
    order="ba",
    launched="b a",
    launchers=("threads",),
)
def cast_once(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        a = net.a(x)
        first = F.linear(x, net.b.weight)
        b = net.b(x)
        second = F.linear(x * 3, net.b.weight)
    return a + b + first * second


SEEN: list[int] = []


class CountsThreads(Shift):
    """Notes how many threads it computes with."""

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, FakeTensor):
            SEEN.append(torch.get_num_threads())
        return super().forward(x)


@contextmanager
def others_use_more_threads() -> Iterator[None]:
    """This thread computes with two threads, and threads that begin now with three."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    other = threading.Thread(target=torch.set_num_threads, args=(3,))
    other.start()
    other.join()
    yield
    torch.set_num_threads(before)


@scenario(
    row("threads compute with as many threads", NUMBERS, in_the_thread("set_num_threads")),
    layers={"a": CountsThreads, "b": Shift},
    order="ba",
    launched="b a",
    launchers=("threads",),
)
def as_many_threads(net: Any, x: Tensor) -> Tensor:
    with others_use_more_threads():
        a = net.a(x)
        b: Tensor = net.b(x)
        result = a + b
    net.notes.append(SEEN.pop())
    return result
