"""Programs that hand memory on too early."""

import torch
from backend.virtual.machine.by_hand import DEVICES, after, compute, on, side, zeros


def first_use_on_another_stream(right: bool) -> None:
    zeros("cpu:0", 3)  # freed: its memory may be what the next one gets
    x = torch.empty(3, device="cpu:0")
    with on(side("cpu:0")) as aside:
        if right:
            after(aside, compute("cpu:0"))
        x.fill_(1)
    after(compute("cpu:0"), aside)


def freed_while_another_stream_reads(right: bool) -> None:
    x, aside = zeros("cpu:0", 3), side("cpu:0")
    after(aside, compute("cpu:0"))
    with on(aside):
        x.exp()
    if right:
        after(compute("cpu:0"), aside)
    del x


def freed_while_another_stream_writes(right: bool) -> None:
    x, aside = zeros("cpu:0", 3), side("cpu:0")
    after(aside, compute("cpu:0"))
    with on(aside):
        x.zero_()
    if right:
        DEVICES.use(x, aside)
    del x
    torch.ones(3, device="cpu:0")


def freed_on_the_stream_that_made_it(right: bool) -> None:
    aside = side("cpu:0")
    with on(aside):
        x = zeros("cpu:0", 3)
    after(compute("cpu:0"), aside)
    x.exp()
    if right:
        after(aside, compute("cpu:0"))
    del x  # it goes back to the side stream, which knows nothing of exp


def one_of_two_uses_said(right: bool) -> None:
    x, aside, other = zeros("cpu:0", 3), side("cpu:0"), side("cpu:0", "other")
    for stream in (aside, other):
        after(stream, compute("cpu:0"))
        with on(stream):
            x.exp()
    DEVICES.use(x, other)
    if right:
        DEVICES.use(x, aside)
    del x
