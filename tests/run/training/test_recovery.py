"""After memory ran out, or an interrupt, the next step is right."""

import copy
from typing import Any

import pytest
import torch
from run.training.towers import assert_equal, batch, loss_on, out_of_memory, spread, towers, train

import baechi


def test_recovery_after_a_large_batch() -> None:
    """A batch that is too large raises with the layer and the bytes; the next step is as if nothing was."""
    plain, model = towers(), towers()
    cluster = spread(model, memory="8KiB")
    train(plain)
    with cluster:
        error = out_of_memory(lambda: loss_on(model, batch(1000)))
        train(model)
    # the copy of the batch is 24,000 bytes; 512 are the weights of the left branch
    assert (error.device, error.needed_bytes, error.live_bytes, error.memory_bytes) == (
        "cpu:0",
        24_000,
        512,
        8192,
    )
    assert "24,000 bytes" in str(error)
    assert any("left.0" in note for note in error.__notes__)
    assert isinstance(error, torch.OutOfMemoryError)
    assert_equal(plain, model)


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_recovery_wherever_memory_ran_out(where: str) -> None:
    """Memory that runs out in forward, in backward or in the optimizer's step is given back."""
    plain, model = towers(), towers()
    cluster = spread(model, memory="4KiB")
    train(plain)
    statistics = copy.deepcopy(model.right[2].state_dict())
    with cluster:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        # weights, batch, hidden and output take 512 + 120 + 160 + 160 = 952 bytes in forward; with
        # gradients it is 1,528 in backward, and 2,592 in the step, which makes Adam's state
        free_bytes = {"forward": 800, "backward": 1300, "step": 2200}
        ballast = torch.zeros((4096 - free_bytes[where]) // 4, device="cpu:0")

        def step() -> str:
            optimizer.zero_grad()
            reached = ["forward"]
            try:
                loss = loss_on(model, batch())
                reached.append("backward")
                loss.backward()
                reached.append("step")
                optimizer.step()
            except baechi.DeviceMemoryError:
                return reached[-1]
            return "end"

        assert step() == where
        del ballast
        assert step() == "end"
        model.right[2].load_state_dict(statistics)
        train(model)
    assert_equal(plain, model)


def test_recovery_after_an_interrupt() -> None:
    """Ctrl-C in a layer reaches the caller as it is, and the next step is right."""
    plain, model = towers(), towers()
    cluster = spread(model)
    train(plain)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with cluster:
        hook = model.right.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            loss_on(model, batch())
        hook.remove()
        train(model)
    assert_equal(plain, model)
