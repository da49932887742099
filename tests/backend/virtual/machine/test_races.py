"""Programs with one wait or one hold missing, and their corrected twins."""

import pytest
import torch
from backend.virtual.machine.by_hand import DEVICES, after, cluster_of, compute, on, side, zeros
from backend.virtual.machine.races.aside import (
    a_second_reader_hides_the_first,
    chain_of_waits_with_a_gap,
    download_of_what_is_written_aside,
    event_recorded_too_early,
    flag_set_before_the_value_was_there,
    host_waited_before_the_write,
    host_waited_for_another_device,
    read_aside_what_is_written,
    statistics_written_unsaid,
    two_streams_write,
    upload_read_aside,
    value_waited_for_by_the_host,
    waits_after_instead_of_before,
    waits_for_the_wrong_stream,
    write_aside_what_is_read,
    wrong_stream_waits,
)
from backend.virtual.machine.races.backward import (
    Careless,
    gradient_sent_before_it_was_made,
    gradient_used_before_it_arrived,
    gradients_summed_before_one_arrived,
    optimizer_beside_the_gradients_transfer,
    optimizer_in_lists_beside_the_transfer,
    optimizer_in_lists_over_a_weight_in_flight,
    optimizer_over_a_weight_in_flight,
)
from backend.virtual.machine.races.freeing import (
    first_use_on_another_stream,
    freed_on_the_stream_that_made_it,
    freed_while_another_stream_reads,
    freed_while_another_stream_writes,
    one_of_two_uses_said,
)
from backend.virtual.machine.races.sending import (
    COMPUTE_0,
    COMPUTE_1,
    RX,
    SIDE,
    TX,
    Program,
    consumer_before_rx,
    consumer_on_a_side_stream_before_rx,
    copy_freed_while_it_is_read,
    forwarded_before_it_arrived,
    second_transfer_over_what_the_first_reads,
    source_freed_in_flight,
    source_freed_in_flight_held_by_an_event,
    tx_before_the_producer,
    write_on_a_copy_that_is_forwarded,
    write_on_a_source_in_flight,
    write_on_one_of_two_transfers,
    write_through_a_view_in_flight,
    write_with_out_in_flight,
)

from baechi.backend.virtual.current import at_work
from baechi.errors import StreamRaceError


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
        return Careless.apply(x, (True, False))  # type: ignore[no-any-return]

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


def test_tensors_from_before_are_there_for_every_stream() -> None:
    """A tensor that lay on a device before may be read on any stream, whatever ran there since."""
    before = DEVICES.copy(torch.ones(2), "cpu:0", (None, None))
    with cluster_of():
        zeros("cpu:0")
        with on(side("cpu:0")) as aside:
            before + 1
        after(compute("cpu:0"), aside)


def test_a_transfer_is_over_on_both_ends_at_once() -> None:
    """An event recorded on tx after a transfer tells that the copy is there, as one on rx does."""
    with cluster_of():
        x, (tx, rx) = zeros("cpu:0", 3), DEVICES.transfer_streams("cpu:0", "cpu:1")
        after(tx, compute("cpu:0"))
        y = DEVICES.copy(x, "cpu:1", (tx, rx))
        DEVICES.use(x, tx)
        DEVICES.use(y, compute("cpu:1"))
        after(compute("cpu:1"), tx)
        y.exp()


def test_growing_a_tensor_that_is_read_is_a_race() -> None:
    """`resize_` gives back the memory that it grows out of, which a transfer may still read."""
    with pytest.raises(StreamRaceError), cluster_of():
        x, (tx, rx) = zeros("cpu:0", 3), DEVICES.transfer_streams("cpu:0", "cpu:1")
        after(tx, compute("cpu:0"))
        DEVICES.copy(x, "cpu:1", (tx, rx))
        x.resize_(99)
        after(compute("cpu:0"), tx)
