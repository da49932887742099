"""Each of these fails on the accelerator as it was when this was written."""

import pytest
import torch
from torch import nn

from accelerator import ToyMachine

pytestmark = pytest.mark.default_cases(1)


def default(index: int = 0) -> torch.Stream:
    return torch.accelerator.current_stream(index)


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.functional.smooth_l1_loss])
def test_losses_whose_meta_kernel_resizes(loss, toy: ToyMachine) -> None:
    """Their kernel makes its output larger before it makes it a scalar."""
    x = torch.tensor([1.0, 2.0], device="toy:1", requires_grad=True)
    value = loss(x, torch.tensor([1.0, 4.0], device="toy:1"))
    value.backward()
    c = x.detach().cpu().requires_grad_()
    expected = loss(c, torch.tensor([1.0, 4.0]))
    expected.backward()
    assert value.item() == expected.item() and x.grad.tolist() == c.grad.tolist()


def test_conjugated(toy: ToyMachine) -> None:
    """Copies keep lazy conjugation and negation."""
    x = torch.tensor([1 + 2j], device="toy:0")
    assert x.conj().cpu().tolist() == [1 - 2j] and x.conj().to("toy:1").tolist() == [1 - 2j]
    assert x.conj().imag.cpu().tolist() == [-2.0] and (x.conj() * 1).tolist() == [1 - 2j]
    y = torch.zeros(1, dtype=torch.complex64).conj().copy_(x)
    assert y.tolist() == [1 + 2j]


def test_a_host_output_of_no_dimension(toy: ToyMachine) -> None:
    """An output on the host raises as it does with dimensions."""
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.add(torch.ones((), device="toy:0"), 1, out=torch.zeros(()))


@pytest.mark.parametrize("asked", ["event", "stream"])
def test_a_yes_orders_what_comes_after(asked: str, toy: ToyMachine) -> None:
    """Who was told that an event has happened may use what came before it, on any stream."""
    x = torch.ones(4, device="toy:0")
    done = default().record_event() if asked == "event" else default()
    while not done.query():
        pass
    side = torch.Stream(device="toy:0")
    with side:
        y = x + 1
    side.synchronize()
    assert y.tolist() == [2.0] * 4


@pytest.mark.parametrize("what", ["synchronize", "record and wait"])
def test_memory_is_not_handed_out_where_nothing_is_made(what: str, toy: ToyMachine) -> None:
    """Free memory that another stream read is a fault only if its own stream takes it before that is over."""
    x = torch.ones(4, device="toy:0")
    side = torch.Stream(device="toy:0")
    side.wait_stream(default())
    with side:
        y = x + 1
    del x
    if what == "synchronize":
        torch.accelerator.synchronize(0)
    else:
        default().record_event()
        default().wait_stream(side)
    z = torch.zeros(4, device="toy:0")
    default().wait_stream(side)
    assert (y + z).tolist() == [2.0] * 4


def test_the_same_seed_is_the_same_order(toy: ToyMachine) -> None:
    """What ran before a restart makes no difference after it."""

    def program() -> list[float]:
        results = []
        for seed in range(20):
            toy.restart(seed=seed)
            x = torch.zeros(1, device="toy:0") + 1
            side = torch.Stream(device="toy:0")
            with side:
                y = x + 1
            side.synchronize()
            results.append(str(y.item()))
        toy.restart()
        return results

    assert program() == program()


def test_an_event_on_an_idle_stream_is_now(toy: ToyMachine) -> None:
    """An event on a stream without work happens when the host records it, not when its last kernel ended."""
    begin, end = (torch.Event(device="toy:1", enable_timing=True) for _ in range(2))
    begin.record(default(1))
    torch.ones(1000, device="toy:0")
    torch.accelerator.synchronize(0)
    end.record(default(1))
    end.synchronize()
    assert begin.elapsed_time(end) > 0
