"""Programs with a wait missing between two streams of one device."""

import torch
from backend.virtual.machine.by_hand import DEVICES, after, compute, on, side, zeros
from torch import nn


def upload_read_aside(right: bool) -> None:
    x = torch.ones(3).to("cpu:0")
    with on(side("cpu:0")) as aside:
        if right:
            after(aside, compute("cpu:0"))
        DEVICES.use(x, aside)
        x.exp()


def download_of_what_is_written_aside(right: bool) -> None:
    x = zeros("cpu:0", 3)
    with on(side("cpu:0")) as aside:
        after(aside, compute("cpu:0"))
        x.add_(1)
    if right:
        after(compute("cpu:0"), aside)
    x.cpu()
    after(compute("cpu:0"), aside)


def read_aside_what_is_written(right: bool) -> None:
    x = zeros("cpu:0", 3)
    with on(side("cpu:0")) as aside:
        if right:
            after(aside, compute("cpu:0"))
        x.exp()
    after(compute("cpu:0"), aside)


def write_aside_what_is_read(right: bool) -> None:
    x, aside = zeros("cpu:0", 3), side("cpu:0")
    after(aside, compute("cpu:0"))
    x.exp()
    if right:
        after(aside, compute("cpu:0"))
    with on(aside):
        x.zero_()
    after(compute("cpu:0"), aside)


def two_streams_write(right: bool) -> None:
    x, aside = zeros("cpu:0", 3), side("cpu:0")
    after(aside, compute("cpu:0"))
    with on(aside):
        x[:1].add_(1)
    if right:
        after(compute("cpu:0"), aside)
    x[2:].mul_(2)  # another part: streams are ordered by memory, not by element
    after(compute("cpu:0"), aside)


def event_recorded_too_early(right: bool) -> None:
    x = zeros("cpu:0", 3)
    event = DEVICES.record(compute("cpu:0"))
    x.add_(1)
    if right:
        event = DEVICES.record(compute("cpu:0"))
    with on(side("cpu:0")) as aside:
        DEVICES.wait(aside, event)
        x.exp()
    after(compute("cpu:0"), aside)


def waits_for_the_wrong_stream(right: bool) -> None:
    x, aside, other = zeros("cpu:0", 3), side("cpu:0"), side("cpu:0", "other")
    after(other, compute("cpu:0"))
    with on(other):
        x.add_(1)
    after(aside, other if right else compute("cpu:0"))
    with on(aside):
        x.exp()
    after(compute("cpu:0"), other)
    after(compute("cpu:0"), aside)


def wrong_stream_waits(right: bool) -> None:
    x, aside, other = zeros("cpu:0", 3), side("cpu:0"), side("cpu:0", "other")
    after(aside if right else other, compute("cpu:0"))
    with on(aside):
        x.exp()
    after(compute("cpu:0"), aside)


def waits_after_instead_of_before(right: bool) -> None:
    x, aside = zeros("cpu:0", 3), side("cpu:0")
    if right:
        after(aside, compute("cpu:0"))
    with on(aside):
        x.exp()
    after(aside, compute("cpu:0"))
    after(compute("cpu:0"), aside)


def chain_of_waits_with_a_gap(right: bool) -> None:
    x, first, second = zeros("cpu:0", 3), side("cpu:0", "first"), side("cpu:0", "second")
    if right:
        after(first, compute("cpu:0"))
    after(second, first)
    with on(second):
        x.exp()
    after(compute("cpu:0"), second)


def a_second_reader_hides_the_first(right: bool) -> None:
    x, reader, writer = zeros("cpu:0", 3), side("cpu:0", "reader"), side("cpu:0", "writer")
    after(reader, compute("cpu:0"))
    after(writer, compute("cpu:0"))
    with on(reader):
        x.exp()
    x.sin()
    after(writer, compute("cpu:0"))  # knows of one reader
    if right:
        after(writer, reader)
    with on(writer):
        x.zero_()
    after(compute("cpu:0"), writer)
    after(compute("cpu:0"), reader)


def value_waited_for_by_the_host(right: bool) -> None:
    x = zeros("cpu:0", 3)
    if right:
        x[0].item()
    with on(side("cpu:0")) as aside:
        x.exp()
    after(compute("cpu:0"), aside)


def host_waited_before_the_write(right: bool) -> None:
    x = zeros("cpu:0", 3)
    if not right:
        x[0].item()
    x.add_(1)
    if right:
        x[0].item()
    with on(side("cpu:0")) as aside:
        x.exp()
    after(compute("cpu:0"), aside)


def host_waited_for_another_device(right: bool) -> None:
    x, y = zeros("cpu:0", 3), zeros("cpu:1", 3)
    (x if right else y)[0].item()
    with on(side("cpu:0")) as aside:
        x.exp()
    after(compute("cpu:0"), aside)


def flag_set_before_the_value_was_there(right: bool) -> None:
    x, early, late = zeros("cpu:0", 3), DEVICES.flag(), DEVICES.flag()

    def waits() -> None:
        early.set()
        x[0].item()
        late.set()

    DEVICES.spawn(waits, 0)
    (late if right else early).wait()
    with on(side("cpu:0")) as aside:
        x.exp()
    after(compute("cpu:0"), aside)


def statistics_written_unsaid(right: bool) -> None:
    norm = nn.BatchNorm1d(2).to("cpu:0")
    assert norm.running_mean is not None
    aside = side("cpu:0")
    after(aside, compute("cpu:0"))
    norm(torch.ones(3, 2, device="cpu:0"))
    if right:
        after(aside, compute("cpu:0"))
    with on(aside):
        norm.running_mean.clone()
    after(compute("cpu:0"), aside)
