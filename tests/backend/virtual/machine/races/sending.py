"""Programs with a wait or a hold missing around a transfer by hand.

Each program takes `right`: without it, one line that orders or holds is left out, and the emulated
cluster must say so, naming what collides; with it, the program must pass.
"""

from collections.abc import Callable
from typing import Any

import torch
from backend.virtual.machine.by_hand import DEVICES, after, compute, on, side, zeros

from baechi.backend.sends import wait_for_readers
from baechi.backend.transfer import transfer

COMPUTE_0, COMPUTE_1 = "cpu:0/compute", "cpu:1/compute"
TX, RX = "cpu:0>cpu:1/tx", "cpu:0>cpu:1/rx"
SIDE = "cpu:0/side"

Program = Callable[[bool], Any]


def streams(source: str = "cpu:0", target: str = "cpu:1") -> Any:
    return DEVICES.transfer_streams(source, target)


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
