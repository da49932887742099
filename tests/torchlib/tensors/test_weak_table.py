"""A value belongs to the tensor that it was given to, whatever came in between."""

import sys

import pytest
import torch

from baechi.torchlib.tensors.weak_table import WeakTable


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_an_entry_goes() -> None:
    """Ctrl-C comes as a tensor dies, and its entry stays: another tensor with its id has no value."""
    table: WeakTable[int] = WeakTable()

    def interrupts(frame, event, _):  # type: ignore[no-untyped-def]
        if event == "call" and frame.f_code.co_name == "forget":
            raise KeyboardInterrupt

    tensors = [torch.zeros(1) for _ in range(50)]
    for number, tensor in enumerate(tensors):
        table.put(tensor, number)
    ids = set(map(id, tensors))
    sys.setprofile(interrupts)
    try:
        del tensors, tensor
    finally:
        sys.setprofile(None)
    others = [torch.zeros(1) for _ in range(200)]
    same = [other for other in others if id(other) in ids]
    assert same
    for other in same:
        assert table.get(other) is None
    assert table.pop(same[0]) is None
    table.put(same[0], 7)
    assert table.get(same[0]) == 7
