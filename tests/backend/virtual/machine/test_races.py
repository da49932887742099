"""Programs with one wait or one hold missing, and their corrected twins.

Each program takes `right`: without it, one line that orders or holds is left out, and the emulated
cluster must say so, naming what collides; with it, the program must pass.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backend.virtual.machine.by_hand import DEVICES, after, cluster_of, compute, on, side, zeros
from torch import nn

from baechi.backend.sends import wait_for_readers
from baechi.backend.transfer import transfer
from baechi.backend.virtual.current import at_work
from baechi.errors import StreamRaceError

COMPUTE_0, COMPUTE_1 = "cpu:0/compute", "cpu:1/compute"
TX, RX = "cpu:0>cpu:1/tx", "cpu:0>cpu:1/rx"
SIDE = "cpu:0/side"

Program = Callable[[bool], Any]


def streams(source: str = "cpu:0", target: str = "cpu:1") -> Any:
    return DEVICES.transfer_streams(source, target)


# --- a transfer, by hand


def tx_before_the_producer(right: bool) -> None:
    x, (tx, rx) = zeros("cpu:0", 3), streams()
    if right:
        after(tx, compute("cpu:0"))
    y = DEVICES.copy(x, "cpu:1", (tx, rx))
    DEVICES.use(x, tx)
    after(compute("cpu:1"), rx)
    del y


def consumer_before_rx(right: bool) -> None:
    x, (tx, rx) = zeros("cpu:0", 3), streams()
    after(tx, compute("cpu:0"))
    y = DEVICES.copy(x, "cpu:1", (tx, rx))
    DEVICES.use(x, tx)
    DEVICES.use(y, compute("cpu:1"))
    if right:
        after(compute("cpu:1"), rx)
    y.exp()


def consumer_on_a_side_stream_before_rx(right: bool) -> None:
    y = transfer(zeros("cpu:0", 3), DEVICES, "cpu:1")  # lets compute wait, and nobody else
    with on(side("cpu:1")) as aside:
        if right:
            after(aside, compute("cpu:1"))
        DEVICES.use(y, aside)
        y.exp()


def source_freed_in_flight(right: bool) -> None:
    x, (tx, rx) = zeros("cpu:0", 3), streams()
    after(tx, compute("cpu:0"))
    y = DEVICES.copy(x, "cpu:1", (tx, rx))
    if right:
        DEVICES.use(x, tx)
    del x
    torch.ones(3, device="cpu:0")  # would get the memory that tx still reads
    del y


def source_freed_in_flight_held_by_an_event(right: bool) -> None:
    x, (tx, rx) = zeros("cpu:0", 3), streams()
    after(tx, compute("cpu:0"))
    y = DEVICES.copy(x, "cpu:1", (tx, rx))
    if right:
        after(compute("cpu:0"), tx)
    del x, y


def copy_freed_while_it_is_read(right: bool) -> None:
    x, (tx, rx) = zeros("cpu:0", 3), streams()
    after(tx, compute("cpu:0"))
    y = DEVICES.copy(x, "cpu:1", (tx, rx))
    DEVICES.use(x, tx)
    after(compute("cpu:1"), rx)
    y.exp()
    if right:
        DEVICES.use(y, compute("cpu:1"))
    del y
    after(tx, compute("cpu:0"))
    DEVICES.copy(x, "cpu:1", (tx, rx))  # would get the memory that compute still reads


def write_on_a_source_in_flight(right: bool) -> None:
    x = zeros("cpu:0", 3)
    transfer(x, DEVICES, "cpu:1")
    if right:
        wait_for_readers(x, DEVICES)
    x.add_(1)


def write_through_a_view_in_flight(right: bool) -> None:
    x = zeros("cpu:0", 4)
    transfer(x[2:], DEVICES, "cpu:1")
    if right:
        wait_for_readers(x, DEVICES)
    x.view(2, 2)[0].mul_(2)


def write_with_out_in_flight(right: bool) -> None:
    x, z = zeros("cpu:0", 3), torch.ones(3, device="cpu:0")
    transfer(x, DEVICES, "cpu:1")
    if right:
        wait_for_readers(x, DEVICES)
    torch.exp(z, out=x)


def write_on_one_of_two_transfers(right: bool) -> None:
    x = zeros("cpu:0", 3)
    transfer(x, DEVICES, "cpu:2")
    tx, rx = streams()
    after(tx, compute("cpu:0"))
    DEVICES.copy(x, "cpu:1", (tx, rx))
    DEVICES.use(x, tx)
    wait_for_readers(x, DEVICES)  # knows the first only
    if right:
        after(compute("cpu:0"), tx)
    x.add_(1)


def write_on_a_copy_that_is_forwarded(right: bool) -> None:
    y = transfer(zeros("cpu:0", 3), DEVICES, "cpu:1")
    transfer(y, DEVICES, "cpu:2")
    if right:
        wait_for_readers(y, DEVICES)
    y.add_(1)


def forwarded_before_it_arrived(right: bool) -> None:
    x, (tx, rx), (onward_tx, onward_rx) = zeros("cpu:0", 3), streams(), streams("cpu:1", "cpu:2")
    after(tx, compute("cpu:0"))
    y = DEVICES.copy(x, "cpu:1", (tx, rx))
    DEVICES.use(x, tx)
    DEVICES.use(y, onward_tx)
    after(onward_tx, rx if right else compute("cpu:1"))
    DEVICES.copy(y, "cpu:2", (onward_tx, onward_rx))


def second_transfer_over_what_the_first_reads(right: bool) -> None:
    x, y = zeros("cpu:0", 3), zeros("cpu:2", 3)
    transfer(x, DEVICES, "cpu:1")
    if right:
        wait_for_readers(x, DEVICES)
    x.copy_(y)  # from cpu:2, on both computing streams


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


# --- two streams of one device


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


# --- memory that is handed on


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


# --- backward


class _Careless(torch.autograd.Function):
    """A transfer whose gradient comes back with one of its two waits missing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, waits: tuple[bool, bool]) -> torch.Tensor:
        ctx.waits = waits
        return transfer(x, DEVICES, "cpu:1")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (tx, rx), (for_producer, for_rx) = streams("cpu:1", "cpu:0"), ctx.waits
        if for_producer:
            after(tx, compute("cpu:1"))
        home = DEVICES.copy(grad, "cpu:0", (tx, rx))
        DEVICES.use(grad, tx)
        DEVICES.use(home, compute("cpu:0"))
        if for_rx:
            after(compute("cpu:0"), rx)
        return home, None


def gradient_sent_before_it_was_made(right: bool) -> None:
    x = zeros("cpu:0", 3, requires_grad=True)
    _Careless.apply(x.exp(), (right, True)).exp().sum().backward()


def gradient_used_before_it_arrived(right: bool) -> None:
    x = zeros("cpu:0", 3, requires_grad=True)
    _Careless.apply(x.exp(), (True, right)).exp().sum().backward()


def gradients_summed_before_one_arrived(right: bool) -> None:
    x = zeros("cpu:0", 3, requires_grad=True)
    y = _Careless.apply(x, (True, right))
    torch.autograd.backward((x.exp(), y.exp()), (zeros("cpu:0", 3), zeros("cpu:1", 3)))


def optimizer_beside_the_gradients_transfer(right: bool, foreach: bool = False) -> None:
    weight = nn.Parameter(zeros("cpu:0", 3))
    weight.grad = transfer(zeros("cpu:1", 3), DEVICES, "cpu:0")
    with on(side("cpu:0")) as aside:
        if right:
            after(aside, compute("cpu:0"))
        DEVICES.use(weight.grad, aside)
        torch.optim.SGD([weight], 0.1, foreach=foreach).step()
    after(compute("cpu:0"), aside)


def optimizer_in_lists_beside_the_transfer(right: bool) -> None:
    optimizer_beside_the_gradients_transfer(right, foreach=True)


def optimizer_over_a_weight_in_flight(right: bool, foreach: bool = False) -> None:
    weight = nn.Parameter(zeros("cpu:0", 3))
    weight.grad = torch.ones_like(weight)
    transfer(weight.detach(), DEVICES, "cpu:1")
    if right:
        wait_for_readers(weight, DEVICES)
    torch.optim.SGD([weight], 0.1, foreach=foreach).step()


def optimizer_in_lists_over_a_weight_in_flight(right: bool) -> None:
    optimizer_over_a_weight_in_flight(right, foreach=True)


def reads(one: str, where: str, other: str, there: str) -> tuple[str, ...]:
    """What is said of something that reads what may still be written."""
    return f"{one} on stream {where} reads memory", f"that {other} on stream {there} may still be writing"


def writes(one: str, where: str, other: str, there: str, doing: str = "reading") -> tuple[str, ...]:
    """What is said of something that writes what may still be read, or written."""
    return f"{one} on stream {where} writes memory", f"that {other} on stream {there} may still be {doing}"


def frees(where: str, other: str, there: str) -> tuple[str, ...]:
    """What is said of memory that goes back to a stream while another may still use it."""
    return f"freed for stream {where} while", f"{other} on stream {there} may still be using it"


RACES: dict[str, tuple[Program, tuple[str, ...]]] = {
    program.__name__: (program, words)
    for program, words in (
        (tx_before_the_producer, reads("copy", TX, "zeros", COMPUTE_0)),
        (consumer_before_rx, reads("exp", COMPUTE_1, "copy", RX)),
        (consumer_on_a_side_stream_before_rx, reads("exp", "cpu:1/side", "copy", RX)),
        (source_freed_in_flight, frees(COMPUTE_0, "copy", TX)),
        (source_freed_in_flight_held_by_an_event, frees(COMPUTE_0, "copy", TX)),
        (copy_freed_while_it_is_read, frees(RX, "exp", COMPUTE_1)),
        (write_on_a_source_in_flight, writes("add_", COMPUTE_0, "copy", TX)),
        (write_through_a_view_in_flight, writes("mul_", COMPUTE_0, "copy", TX)),
        (write_with_out_in_flight, writes("exp", COMPUTE_0, "copy", TX)),
        (write_on_one_of_two_transfers, writes("add_", COMPUTE_0, "copy", TX)),
        (write_on_a_copy_that_is_forwarded, writes("add_", COMPUTE_1, "copy", "cpu:1>cpu:2/tx")),
        (forwarded_before_it_arrived, reads("copy", "cpu:1>cpu:2/tx", "copy", RX)),
        (second_transfer_over_what_the_first_reads, writes("copy_", COMPUTE_0, "copy", TX)),
        (upload_read_aside, reads("exp", SIDE, "copy", COMPUTE_0)),
        (download_of_what_is_written_aside, reads("copy", COMPUTE_0, "add_", SIDE)),
        (read_aside_what_is_written, reads("exp", SIDE, "zeros", COMPUTE_0)),
        (write_aside_what_is_read, writes("zero_", SIDE, "exp", COMPUTE_0)),
        (two_streams_write, writes("mul_", COMPUTE_0, "add_", SIDE, "writing")),
        (event_recorded_too_early, reads("exp", SIDE, "add_", COMPUTE_0)),
        (waits_for_the_wrong_stream, reads("exp", SIDE, "add_", "cpu:0/other")),
        (wrong_stream_waits, reads("exp", SIDE, "zeros", COMPUTE_0)),
        (waits_after_instead_of_before, reads("exp", SIDE, "zeros", COMPUTE_0)),
        (chain_of_waits_with_a_gap, reads("exp", "cpu:0/second", "zeros", COMPUTE_0)),
        (a_second_reader_hides_the_first, writes("zero_", "cpu:0/writer", "exp", "cpu:0/reader")),
        (value_waited_for_by_the_host, reads("exp", SIDE, "zeros", COMPUTE_0)),
        (host_waited_before_the_write, reads("exp", SIDE, "add_", COMPUTE_0)),
        (host_waited_for_another_device, reads("exp", SIDE, "zeros", COMPUTE_0)),
        (flag_set_before_the_value_was_there, reads("exp", SIDE, "zeros", COMPUTE_0)),
        (statistics_written_unsaid, reads("clone", SIDE, "native_batch_norm", COMPUTE_0)),
        (first_use_on_another_stream, writes("fill_", SIDE, "allocation", COMPUTE_0, "writing")),
        (freed_while_another_stream_reads, frees(COMPUTE_0, "exp", SIDE)),
        (freed_while_another_stream_writes, frees(COMPUTE_0, "zero_", SIDE)),
        (freed_on_the_stream_that_made_it, frees(SIDE, "exp", COMPUTE_0)),
        (one_of_two_uses_said, frees(COMPUTE_0, "exp", SIDE)),
        (gradient_sent_before_it_was_made, reads("copy", "cpu:1>cpu:0/tx", "mul", COMPUTE_1)),
        (gradient_used_before_it_arrived, reads("mul", COMPUTE_0, "copy", "cpu:1>cpu:0/rx")),
        (gradients_summed_before_one_arrived, reads("add", COMPUTE_0, "copy", "cpu:1>cpu:0/rx")),
        (optimizer_beside_the_gradients_transfer, reads("add_", SIDE, "copy", "cpu:1>cpu:0/rx")),
        (optimizer_in_lists_beside_the_transfer, reads("_foreach_add_", SIDE, "copy", "cpu:1>cpu:0/rx")),
        (optimizer_over_a_weight_in_flight, writes("add_", COMPUTE_0, "copy", TX)),
        (optimizer_in_lists_over_a_weight_in_flight, writes("_foreach_add_", COMPUTE_0, "copy", TX)),
    )
}


@pytest.mark.parametrize("name", RACES)
def test_races_are_caught(name: str) -> None:
    """A program with a wait or a hold missing raises, naming both operators and both streams."""
    program, words = RACES[name]
    with pytest.raises(StreamRaceError) as caught, cluster_of(3):
        program(False)
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


@pytest.mark.parametrize("name", RACES)
def test_their_corrected_twins_pass(name: str) -> None:
    """The same program with the missing line raises nothing."""
    with cluster_of(3):
        RACES[name][0](True)


def test_layers_are_named() -> None:
    """The error names the layers, too: the one that raises, and the one it collides with."""
    with pytest.raises(StreamRaceError) as caught, cluster_of():
        DEVICES.enter_layer("encoder#1")
        x = zeros("cpu:0", 3)
        DEVICES.enter_layer("head")
        with on(side("cpu:0")):
            x.exp()
    assert "exp of layer head on stream cpu:0/side reads" in str(caught.value)
    assert "zeros of layer encoder#1 on stream cpu:0/compute may" in str(caught.value)


def test_layers_are_named_in_backward() -> None:
    """In backward a collision is between layers as well."""

    def careless(x: torch.Tensor) -> torch.Tensor:
        return _Careless.apply(x, (True, False))  # type: ignore[no-any-return]

    with pytest.raises(StreamRaceError) as caught, cluster_of():
        x = zeros("cpu:0", 3, requires_grad=True)
        DEVICES.enter_layer("first")
        y = x.exp()
        DEVICES.enter_layer("")
        y = careless(y)
        DEVICES.enter_layer("second")
        y.exp().backward(zeros("cpu:1", 3))
    assert "mul of layer first on stream cpu:0/compute reads" in str(caught.value)
    assert "copy of layer second on stream cpu:1>cpu:0/rx may" in str(caught.value)


def test_an_early_free_is_told_at_the_next_operation() -> None:
    """Nobody can raise where a tensor dies, so whoever comes next does, and the one after does not."""
    with cluster_of():
        x, aside = zeros("cpu:0", 3), side("cpu:0")
        after(aside, compute("cpu:0"))
        with on(aside):
            x.exp()
        del x
        with pytest.raises(StreamRaceError, match="freed"):
            zeros("cpu:0")
        zeros("cpu:0")


def test_an_early_free_is_told_at_the_end() -> None:
    """If nothing comes after it, the end of the `with` raises, and the cluster is closed all the same."""
    with pytest.raises(StreamRaceError, match="freed"), cluster_of():
        freed_while_another_stream_reads(False)
    assert at_work() is None
    with cluster_of():
        zeros("cpu:0")


def test_an_exception_is_not_hidden_by_an_early_free() -> None:
    """What the program raised is what comes out of the `with`."""
    with pytest.raises(KeyError), cluster_of():
        freed_while_another_stream_reads(False)
        raise KeyError


def test_outside_nothing_is_checked() -> None:
    """Without `with cluster:` there are no streams, and the same calls just copy."""
    x = DEVICES.copy(torch.ones(3), "cpu:0", (None, None))
    tx, rx = DEVICES.transfer_streams("cpu:0", "cpu:1")
    assert tx is rx is None and DEVICES.record(tx) is None
    y = DEVICES.copy(x, "cpu:1", (tx, rx))
    DEVICES.wait(rx, None)
    assert DEVICES.place_of(y) == "cpu:1" and torch.equal(x, y)
