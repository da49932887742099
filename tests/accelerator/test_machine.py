"""The test accelerator itself: what it must find, and what it must not."""

import torch

from accelerator import ToyMachine


def test_a_missing_wait_is_found_and_wrong(toy: ToyMachine) -> None:
    """A stream that does not wait for what it reads: the clocks list it, and the numbers are not there."""
    x = torch.ones(4, device="toy:0")
    made = x * 2
    with torch.accelerator.device_index(0):
        side = torch.Stream(device="toy:0")
    before = torch.accelerator.current_stream(0)
    torch.accelerator.set_stream(side)
    read = made + 1
    torch.accelerator.set_stream(before)
    faults = toy.faults()
    assert len(faults) == 1 and faults[0].startswith("RACE: aten::add on 0/s1 reads what aten::mul")
    del read
    toy.restart()
