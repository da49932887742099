"""The test accelerator itself: right programs have no fault and right numbers, wrong ones are found."""

import copy
import io
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from accelerator import COUNT, NAMES, ToyMachine

pytestmark = pytest.mark.default_cases(1)

SEEDS = range(20)
ORDERS = {"at once": (0, False), "late 1": (1, True), "late 2": (2, True), "late 3": (3, True)}


@pytest.fixture(params=ORDERS.values(), ids=list(ORDERS))
def any_order(toy: ToyMachine, request: pytest.FixtureRequest) -> ToyMachine:
    """The machine, at once or late by one of several seeds."""
    seed, late = request.param
    toy.restart(seed=seed, late=late)
    return toy


def default(index: int = 0) -> torch.Stream:
    """The current stream of a device; in these tests its default one."""
    return torch.accelerator.current_stream(index)


def found(toy: ToyMachine) -> list[str]:
    """What the machine found. It is forgotten, so that the test does not fail by it."""
    faults = toy.faults()
    toy.restart()
    return faults


def found_at_once(toy: ToyMachine, program: Callable[[], float]) -> tuple[float, list[str]]:
    """A program's result where nothing is late, and what the clocks found."""
    toy.restart(late=False)
    return program(), found(toy)


def late_results(toy: ToyMachine, program: Callable[[], float]) -> list[float]:
    """A program's results, late, by several seeds."""
    results = []
    for seed in SEEDS:
        toy.restart(seed=seed, late=True)
        results.append(program())
    toy.restart()
    return results


def run_wrong(results: list[float], right: float) -> int:
    """How many of the results are not the right one (a NaN is not)."""
    return sum(result != right for result in results)


# --- right programs


def test_a_chain_over_two_devices(any_order: ToyMachine) -> None:
    """Copies between devices are ordered after what they read, and before what reads them."""
    x = torch.arange(4.0, device="toy:0")
    for _ in range(5):
        x = ((x * 2).to("toy:1") + 1).to("toy:0")
    assert x.tolist() == [31.0, 63.0, 95.0, 127.0]


def test_streams_that_wait_for_each_other(any_order: ToyMachine) -> None:
    """An event that is recorded and waited for orders two streams."""
    ready = torch.Event(device="toy:0")
    x = torch.arange(4.0, device="toy:0") + 1
    ready.record(default())
    side = torch.Stream(device="toy:0")
    side.wait_event(ready)
    with side:
        y = x * x
    default().wait_event(side.record_event())
    assert (x + y).tolist() == [2.0, 6.0, 12.0, 20.0]


def test_events_order_streams_of_two_devices(any_order: ToyMachine) -> None:
    """A wait holds across devices, and for what came before the event on other streams."""
    x = torch.ones(4, device="toy:0").to("toy:2")
    first, second = torch.Stream(device="toy:2"), torch.Stream(device="toy:1")
    first.wait_stream(default(2))
    with first:
        y = x + 1
    second.wait_stream(first)
    default(0).wait_stream(second)
    default(2).wait_stream(default(0))
    assert (x + y).tolist() == [3.0] * 4


def test_gradients_over_two_devices(any_order: ToyMachine) -> None:
    """Backward through copies gives the CPU's gradients, each on its leaf's device."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.linspace(-1, 1, 12).view(3, 4)
    plain(x).pow(2).sum().backward()
    first, second = copy.deepcopy(plain[:2]).to("toy:0"), copy.deepcopy(plain[2]).to("toy:1")
    first.zero_grad()
    second.zero_grad()
    second(first(x.to("toy:0")).to("toy:1")).pow(2).sum().backward()
    for own, parameter in zip([*first.parameters(), *second.parameters()], plain.parameters(), strict=True):
        assert own.grad is not None and parameter.grad is not None
        assert own.grad.device == own.device and torch.equal(own.grad.cpu(), parameter.grad)


def test_backward_runs_on_the_streams_of_forward(toy: ToyMachine) -> None:
    """Autograd puts a node on the stream that its forward ran on, and orders it after the others."""
    x = torch.ones(4, device="toy:0", requires_grad=True)
    side = torch.Stream(device="toy:0")
    side.wait_stream(default())
    with side:
        y = x.exp()
    default().wait_stream(side)
    toy.keep_issued()
    y.sum().backward()
    lanes = {kernel: lane for lane, kernel in map(str.split, toy.issued())}
    assert lanes["aten::mul"] == f"0/s{side.stream_id}" and lanes["aten::fill_"] == "0/default"
    default().wait_stream(side)
    assert x.grad is not None and x.grad.tolist() == y.tolist()


def test_backward_has_a_thread_for_each_device(toy: ToyMachine) -> None:
    """Nodes run in their device's own thread, on their device, and never in the caller's."""
    threads: dict[str, set[int]] = {"toy:0": set(), "toy:1": set()}

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            threads[str(gradient.device)].add(threading.get_ident())
            return gradient * 2

    noted: Callable[[Tensor], Tensor] = Noting.apply
    x = torch.ones(4, device="toy:0", requires_grad=True)
    y = noted(noted(noted(x).to("toy:1")).to("toy:0")).sum()
    toy.keep_issued()
    y.backward()
    assert [len(of_device) for of_device in threads.values()] == [1, 1]
    assert len({threading.get_ident()}.union(*threads.values())) == 3
    assert [line for line in toy.issued() if "mul" in line] == [
        f"{index}/default aten::mul" for index in (0, 1, 0)
    ]
    assert x.grad is not None and x.grad.tolist() == [8.0] * 4


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9),
    "adam, foreach": lambda weights: torch.optim.Adam(weights, 0.1, foreach=True),
    "adam, fused": lambda weights: torch.optim.Adam(weights, 0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, any_order: ToyMachine) -> None:
    """Three steps leave the CPU's weights, and the host waits for nothing in them."""

    def trained(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        optimizer = OPTIMIZERS[name](model.parameters())
        x = torch.linspace(-1, 1, 12).view(3, 4).to(device)
        before = any_order.waits()
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
        assert any_order.waits() == before
        return [weight.detach().cpu() for weight in model.parameters()]

    assert all(map(torch.equal, trained("cpu"), trained("toy:1")))


def test_an_optimizer_over_two_devices(toy: ToyMachine) -> None:
    """Lists of tensors of several devices are taken apart by device, each on its own."""
    weights = [nn.Parameter(torch.ones(2, device=name)) for name in NAMES[:2]]
    for is_fused in (False, True):
        optimizer = torch.optim.Adam(weights, 0.1, foreach=not is_fused, fused=is_fused)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    expected = pytest.approx([0.8, 0.8])
    assert weights[0].tolist() == expected and weights[1].tolist() == expected


EXACT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9)),
    "conv2d, strided": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 9, 9)),
    "conv2d, grouped": (lambda: nn.Conv2d(4, 4, 3, groups=2, bias=False), (2, 4, 9, 9)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(3, 2, 3), (2, 3, 5, 5)),
    "max_pool": (lambda: nn.MaxPool2d(2), (1, 2, 4, 4)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "softmax": (lambda: nn.Softmax(-1), (3, 4)),
}
CLOSE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True), (2, 4, 3)),
    "gru": (lambda: nn.GRU(3, 5, 2, bidirectional=True), (2, 4, 3)),
    "rnn": (lambda: nn.RNN(3, 5), (2, 4, 3)),
    "lstm cell": (lambda: nn.LSTMCell(3, 5), (2, 3)),
    "gru cell": (lambda: nn.GRUCell(3, 5), (2, 3)),
    "layer_norm": (lambda: nn.LayerNorm(6), (4, 6)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True), (2, 5, 8)),
}


def all_results(module: nn.Module, x: Tensor, device: str) -> list[Tensor]:
    """Output, gradients and buffers of a module of double precision on a device, after one step."""
    module = copy.deepcopy(module).double().to(device)
    x = x.detach().clone().to(device)
    if x.is_floating_point():
        x.requires_grad_()
    output = module(x)
    output = output[0] if isinstance(output, tuple) else output
    output.pow(2).sum().backward()
    leaves = [leaf for leaf in (x, *module.parameters()) if leaf.requires_grad]
    return [result.detach().cpu() for result in (output, *(leaf.grad for leaf in leaves), *module.buffers())]


@pytest.mark.parametrize("name", EXACT)
def test_layers_are_the_cpus(name: str, toy: ToyMachine) -> None:
    """Kernels are the CPU's: outputs, gradients and running statistics are equal."""
    torch.manual_seed(0)
    make, size = EXACT[name]
    module, x = make(), torch.randn(size, dtype=torch.double)
    assert all(map(torch.equal, all_results(module, x, "cpu"), all_results(module, x, "toy:1")))


@pytest.mark.parametrize("name", CLOSE)
def test_layers_close_to_the_cpus(name: str, toy: ToyMachine) -> None:
    """What torch computes otherwise on devices is equal but for rounding."""
    torch.manual_seed(0)
    make, size = CLOSE[name]
    module, x = make(), torch.randn(size, dtype=torch.double)
    torch.testing.assert_close(
        all_results(module, x, "toy:1"), all_results(module, x, "cpu"), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings(make: Callable[[int, int], nn.Module], toy: ToyMachine) -> None:
    """Rows that are looked up, and their gradients, are equal to the CPU's."""
    module, rows = make(7, 3), torch.tensor([[1, 2, 2], [0, 6, 1]])
    assert all(map(torch.equal, all_results(module, rows, "cpu"), all_results(module, rows, "toy:1")))


@pytest.mark.parametrize("settings", [{}, {"is_causal": True}, {"attn_mask": torch.eye(5).bool()}])
def test_attention(settings: dict[str, Any], toy: ToyMachine) -> None:
    """Attention is written out in matrix products and a softmax: close to the CPU's fused kernel."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, 2, 5, 4, dtype=torch.double) for _ in "qkv"]

    def attended(device: str) -> Tensor:
        query, key, value = (tensor.to(device) for tensor in tensors)
        moved: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Tensor) else value for name, value in settings.items()
        }
        return nn.functional.scaled_dot_product_attention(query, key, value, **moved).cpu()

    torch.testing.assert_close(attended("toy:1"), attended("cpu"), rtol=1e-12, atol=1e-12)


def test_dropout(any_order: ToyMachine) -> None:
    """A seed decides what is dropped, and the gradient is dropped with it."""
    x = torch.ones(1000, device="toy:1", requires_grad=True)
    torch.manual_seed(1)
    first, second = nn.functional.dropout(x), nn.functional.dropout(x)
    torch.manual_seed(1)
    again = nn.functional.dropout(x)
    again.sum().backward()
    assert torch.equal(first.cpu(), again.cpu()) and not torch.equal(first.cpu(), second.cpu())
    assert x.grad is not None and x.grad.tolist() == again.tolist() and set(again.tolist()) == {0.0, 2.0}


def test_strided_and_converting_copies(any_order: ToyMachine) -> None:
    """Copies keep values, whatever the strides and the types on both ends."""
    plain = torch.arange(12.0).view(3, 4)
    x = plain.t().to("toy:0")
    assert torch.equal(x.t().cpu(), plain)
    assert torch.equal(x[::2].to("toy:1", torch.double).cpu(), plain.t()[::2].double())
    assert torch.equal(x[:1].expand(5, 3).to("toy:1").cpu(), plain.t()[:1].expand(5, 3))


def test_two_threads(any_order: ToyMachine) -> None:
    """Threads have a current device and current streams of their own."""
    results: dict[int, float] = {}

    def work(index: int) -> None:
        torch.accelerator.set_device_index(index)
        with torch.Stream(device=f"toy:{index}"):
            x = torch.ones(4, device="toy")
            for _ in range(20):
                x = x + index
            results[index] = x.sum().item()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {index: 4.0 + 80 * index for index in range(COUNT)}
    assert torch.accelerator.current_device_index() == 0 and default().stream_id == 0


# --- pinned memory


def test_pinned_memory(any_order: ToyMachine) -> None:
    """Copies from and to pinned memory are right if the host waits before it touches that memory again."""
    assert not torch.ones(4).is_pinned()
    host = torch.arange(4.0).pin_memory()
    assert host.is_pinned() and host[1:].is_pinned()
    x = host.to("toy:0", non_blocking=True)
    done = default().record_event()
    done.synchronize()
    host.zero_()
    host.copy_(x + 1, non_blocking=True)
    assert "copy to host" not in any_order.waits()
    default().synchronize()
    assert host.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_pinned_buffer_overwritten_too_early(toy: ToyMachine) -> None:
    """Late shows a host that overwrites what a copy has yet to read; the clocks know no host memory."""

    def program() -> float:
        host = torch.ones(4).pin_memory()
        x = host.to("toy:0", non_blocking=True)
        host.fill_(2)
        return x[0].item()

    assert run_wrong(late_results(toy, program), right=1) > 0
    assert found_at_once(toy, program) == (1.0, [])


def test_pinned_memory_read_too_early(toy: ToyMachine) -> None:
    """Late shows a host that reads what a copy has yet to write."""

    def program() -> float:
        x = torch.ones(4, device="toy:0")
        host = torch.zeros(4).pin_memory()
        host.copy_(x, non_blocking=True)
        return host[0].item()

    assert run_wrong(late_results(toy, program), right=1) > 0
    assert found_at_once(toy, program) == (1.0, [])


def test_pageable_memory_is_read_at_once(toy: ToyMachine) -> None:
    """From memory that is not pinned a copy has read when it returns, `non_blocking` or not."""

    def program() -> float:
        host = torch.ones(4)
        x = host.to("toy:0", non_blocking=True)
        host.fill_(2)
        return x[0].item()

    assert run_wrong(late_results(toy, program), right=1) == 0


# --- wrong programs


def test_a_read_that_does_not_wait(toy: ToyMachine) -> None:
    """A stream reads what another one is still to write: the clocks list it, late numbers are wrong."""
    names = set()

    def program() -> float:
        x = torch.ones(4, device="toy:0") * 2
        side = torch.Stream(device="toy:0")
        names.add(f"0/s{side.stream_id}")
        with side:
            y = x + 1
        side.synchronize()
        return y[0].item()

    value, faults = found_at_once(toy, program)
    assert value == 3  # in order of issue it is right, by luck
    assert faults == [f"RACE: aten::add on {names.pop()} reads what aten::mul on 0/default wrote"]
    assert run_wrong(late_results(toy, program), right=3) > 0


def test_a_write_that_does_not_wait(toy: ToyMachine) -> None:
    """A stream overwrites what another one is still to read."""
    names = set()

    def program() -> float:
        x = torch.ones(4, device="toy:0")
        side = torch.Stream(device="toy:0")
        names.add(f"0/s{side.stream_id}")
        side.wait_stream(default())
        with side:
            y = x + 1
        x.fill_(5)
        side.synchronize()
        return y[0].item()

    value, faults = found_at_once(toy, program)
    assert value == 2
    assert faults == [f"RACE: aten::fill_ on 0/default writes what aten::add on {names.pop()} read"]
    assert run_wrong(late_results(toy, program), right=2) > 0


def let_go_of(recorded: bool) -> float:
    """Memory that a side stream reads goes back to its own stream, which writes into it."""
    x = torch.ones(4, device="toy:0")
    side = torch.Stream(device="toy:0")
    side.wait_stream(default())
    with side:
        y = x + 1
    if recorded:
        x.record_stream(side)
    del x
    torch.zeros(4, device="toy:0")
    side.synchronize()
    return y[0].item()


def test_memory_let_go_of_without_record(toy: ToyMachine) -> None:
    """The clocks list it, and the next owner's numbers come in between."""
    value, faults = found_at_once(toy, lambda: let_go_of(recorded=False))
    assert value == 2
    assert len(faults) == 1 and faults[0].startswith("FREE: aten::add on 0/s")
    assert run_wrong(late_results(toy, lambda: let_go_of(recorded=False)), right=2) > 0


def test_memory_let_go_of_with_record(any_order: ToyMachine) -> None:
    """Where the stream is recorded, memory comes back when that stream is done."""
    assert let_go_of(recorded=True) == 2


def test_a_kernel_without_a_device_guard(toy: ToyMachine) -> None:
    """It goes to the current device, where nothing orders it after what the tensor's device has to do."""

    def program(current: int) -> float:
        x = torch.ones(4, device="toy:1")
        with torch.accelerator.device_index(current):
            torch.ops.toy.unguarded_add_(x, 1.0)
        torch.accelerator.synchronize(current)
        return x[0].item()

    value, faults = found_at_once(toy, lambda: program(0))
    assert faults == ["RACE: unguarded_add on 0/default writes what aten::fill_ on 1/default wrote"]
    assert value == 2 and run_wrong(late_results(toy, lambda: program(0)), right=2) > 0
    assert run_wrong(late_results(toy, lambda: program(1)), right=2) == 0
    assert found_at_once(toy, lambda: program(1)) == (2.0, [])


def test_halves_of_a_tensor_count_as_one(toy: ToyMachine) -> None:
    """Memory is judged storage by storage: two streams that write two halves are said to race."""
    x = torch.zeros(4, device="toy:0")
    side = torch.Stream(device="toy:0")
    side.wait_stream(default())
    with side:
        x[:2].fill_(1)
    x[2:].fill_(2)
    torch.accelerator.synchronize(0)
    assert x.tolist() == [1.0, 1.0, 2.0, 2.0]
    assert len(found(toy)) == 1


def test_a_kernel_that_fails(toy: ToyMachine) -> None:
    """An error inside a late kernel is a fault, since the program has gone on."""
    rows = nn.Embedding(3, 2).to("toy:0")(torch.tensor([7], device="toy:0"))
    assert rows.shape == (1, 2)
    faults = found(toy)
    assert len(faults) == 1 and faults[0].startswith("FAILED: index out of range")


@pytest.mark.parametrize("other", ["toy:1", "cpu"])
def test_arguments_on_two_devices(other: str, toy: ToyMachine) -> None:
    """They raise as on CUDA; a number in a tensor of the host may go along."""
    x = torch.ones(2, device="toy:0")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(2, device=other)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([x, torch.ones(2, device=other)])
    assert (x + torch.tensor(1.0)).tolist() == [2.0, 2.0]


# --- devices, streams, events


def test_the_current_device(toy: ToyMachine) -> None:
    """A device type without an index is the current device; a device that is not there raises."""
    assert torch.accelerator.device_count() == COUNT and torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(2):
        assert torch.empty(1, device="toy").device == torch.device("toy:2")
        assert torch.empty(1, device="toy:1").device == torch.device("toy:1")
    assert torch.accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match=f"invalid device ordinal toy:{COUNT}"):
        torch.empty(1, device=f"toy:{COUNT}")


def test_streams_come_from_a_pool(toy: ToyMachine) -> None:
    """A device has a default stream and 32 others, which come again in turn."""
    assert default().stream_id == 0
    made = [torch.Stream(device="toy:3").stream_id for _ in range(64)]
    assert sorted(made[:32]) == list(range(1, 33)) and made[32:] == made[:32]


def test_a_stream_as_context(toy: ToyMachine) -> None:
    """Inside it is the current stream of its device, which is the current device."""
    side = torch.Stream(device="toy:2")
    with side:
        assert default(2) == side and default(0).stream_id == 0
        assert torch.accelerator.current_device_index() == 2
    assert default(2).stream_id == 0 and torch.accelerator.current_device_index() == 0


def test_events_are_asked_and_waited_for(toy: ToyMachine) -> None:
    """A late event has not happened when it is recorded; it has after a wait, or after many questions."""
    event = torch.Event(device="toy:0")
    assert event.query()
    torch.ones(4, device="toy:0")
    event.record(default())
    assert not event.query()
    event.synchronize()
    assert event.query() and toy.waits() == ["event.synchronize"]
    torch.ones(4, device="toy:0")
    event.record(default())
    assert any(event.query() for _ in range(10_000)) and toy.waits() == ["event.synchronize"]


def test_elapsed_time(toy: ToyMachine) -> None:
    """The same program takes the same time in any order; more work takes more."""

    def measured(seed: int, late: bool, kernels: int) -> float:
        toy.restart(seed=seed, late=late)
        begin, end = (torch.Event(device="toy:0", enable_timing=True) for _ in range(2))
        x = torch.ones(1000, device="toy:0")
        begin.record(default())
        for _ in range(kernels):
            x = x.to("toy:1").to("toy:0")
        end.record(default())
        end.synchronize()
        return begin.elapsed_time(end)

    times = [measured(seed, late, kernels=2) for seed, late in ORDERS.values()]
    assert times == pytest.approx([times[0]] * len(times), rel=1e-6)
    assert 0 < times[0] < measured(1, True, kernels=4)


def test_where_the_host_waits(toy: ToyMachine) -> None:
    """Kernels, copies between devices and copies to pinned memory do not wait; values do."""
    x = torch.ones(8, 8, device="toy:0")
    host = torch.empty(8, 8).pin_memory()
    for _ in range(5):
        x = (x @ x).relu().to("toy:1").to("toy:0") / 8
    host.copy_(x, non_blocking=True)
    assert toy.waits() == []
    assert x.sum().item() == 64.0
    x.cpu()
    torch.ones(1).to("toy:0")
    default().synchronize()
    assert toy.waits() == ["copy to host", "copy to host", "copy from host", "stream.synchronize"]
    torch.accelerator.synchronize(0)
    assert set(toy.waits()[4:]) == {"synchronize"}


def test_a_kernel_whose_result_cannot_be_foreseen(toy: ToyMachine) -> None:
    """The host waits for it, as on a GPU, and it is listed."""
    x = torch.tensor([0.0, 3.0, 0.0, 5.0], device="toy:0")
    before = len(toy.waits())
    rows = x.nonzero()
    assert toy.waits()[before:] == ["aten::nonzero"] and "aten::nonzero" in toy.unforeseen()
    assert rows.tolist() == [[1], [3]]


def test_what_is_issued(toy: ToyMachine) -> None:
    """Kernels are noted by device and stream; a copy between devices is on the source's stream."""
    toy.keep_issued()
    (torch.ones(2, device="toy:0") * 2).to("toy:1")
    assert toy.issued() == ["0/default aten::fill_", "0/default aten::mul", "0/default copy"]


# --- random numbers


def test_seeds(toy: ToyMachine) -> None:
    """`torch.manual_seed` seeds all devices; the state of one can be kept and set."""
    torch.manual_seed(5)
    first = [torch.rand(3, device=name).tolist() for name in NAMES]
    torch.manual_seed(5)
    assert [torch.rand(3, device=name).tolist() for name in NAMES] == first
    states = [torch.get_device_module("toy").get_rng_state(name) for name in NAMES[:2]]
    second = [torch.rand(3, device=name).tolist() for name in NAMES[:2]]
    torch.get_device_module("toy").set_rng_state(states[1], "toy:1")
    again = [torch.rand(3, device=name).tolist() for name in NAMES[:2]]
    assert again[0] != second[0] and again[1] == second[1] != first[1]


def test_draws_are_the_same_in_any_order(toy: ToyMachine) -> None:
    """Which numbers come is decided when a kernel is issued, not when it runs."""
    drawn = set()
    for seed, late in ORDERS.values():
        toy.restart(seed=seed, late=late)
        torch.manual_seed(3)
        side = torch.Stream(device="toy:1")
        with side:
            first = torch.randn(4, device="toy:1")
        second, third = torch.rand(4, device="toy:1"), torch.randperm(4, device="toy:0")
        side.synchronize()
        drawn.add((*first.tolist(), *second.tolist(), *third.tolist()))
    assert len(drawn) == 1


def test_generators(toy: ToyMachine) -> None:
    """A generator of a device leaves the default one alone; one of the CPU raises."""
    own = torch.Generator(device="toy:1")
    torch.manual_seed(0)
    state = torch.get_device_module("toy").get_rng_state("toy:1")
    draws = [torch.rand(3, device="toy:1", generator=own.manual_seed(7)).tolist() for _ in range(2)]
    assert draws[0] == draws[1]
    assert torch.equal(torch.get_device_module("toy").get_rng_state("toy:1"), state)
    with pytest.raises(RuntimeError, match="Expected a 'toy' device type for generator but found 'cpu'"):
        torch.rand(3, device="toy:1", generator=torch.Generator())


def test_drawing_leaves_the_hosts_generator(toy: ToyMachine) -> None:
    """A device's draw does not move the CPU's generator."""
    state = torch.get_rng_state()
    torch.rand(3, device="toy:0").tolist()
    assert torch.equal(torch.get_rng_state(), state)


def test_checkpointed_dropout(toy: ToyMachine) -> None:
    """What is computed again in backward draws the same again."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout()).to("toy:1")
    gradients = []
    calls: list[Callable[[Tensor], Tensor]] = [layer, lambda x: checkpoint(layer, x, use_reentrant=False)]
    for call in calls:
        torch.manual_seed(3)
        x = torch.ones(4, 8, device="toy:1", requires_grad=True)
        call(x).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.tolist())
    assert gradients[0] == gradients[1]


# --- memory


@contextmanager
def limited(toy: ToyMachine, index: int, free_bytes: int) -> Iterator[None]:
    """A device with so much memory left."""
    toy.limit(index, torch.accelerator.memory_allocated(index) + free_bytes)
    try:
        yield
    finally:
        toy.limit(index, None)


def test_allocated_bytes(toy: ToyMachine) -> None:
    """Bytes count from allocation to the last reference, in multiples of 512, on their device."""
    before = torch.accelerator.memory_allocated(2)
    torch.accelerator.reset_peak_memory_stats(2)
    x = torch.empty(1000, device="toy:2")
    y = torch.empty(3, device="toy:2")
    assert torch.accelerator.memory_allocated(2) - before == 4096 + 512
    view = x[:10]
    del x, y
    assert torch.accelerator.memory_allocated(2) - before == 4096
    del view
    assert torch.accelerator.memory_allocated(2) == before
    assert torch.accelerator.max_memory_allocated(2) - before == 4096 + 512
    torch.accelerator.reset_peak_memory_stats(2)
    assert torch.accelerator.max_memory_allocated(2) == before


def test_training_keeps_its_memory(toy: ToyMachine) -> None:
    """Steps after the first one hold as many bytes as it did."""
    layer = nn.LSTM(4, 4).to("toy:1")
    optimizer = torch.optim.Adam(layer.parameters())
    held = []
    for _ in range(4):
        layer(torch.ones(3, 2, 4, device="toy:1"))[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        held.append(torch.accelerator.memory_allocated(1))
    assert held == [held[0]] * 4


def test_out_of_memory(toy: ToyMachine) -> None:
    """Beyond the limit an allocation raises; when something was freed, it goes well."""
    with limited(toy, 3, free_bytes=4096):
        x = torch.empty(1000, device="toy:3")
        with pytest.raises(torch.OutOfMemoryError, match="toy:3 is out of memory: 2000 bytes are asked for"):
            torch.empty(500, device="toy:3")
        torch.empty(500, device="toy:0")
        del x
        assert torch.ones(1000, device="toy:3").tolist() == [1.0] * 1000


def test_a_full_device_waits_for_recorded_memory(toy: ToyMachine) -> None:
    """What a recorded stream still uses comes back when the allocator has waited for that stream."""
    side = torch.Stream(device="toy:3")
    with limited(toy, 3, free_bytes=2048):
        x = torch.ones(300, device="toy:3")
        side.wait_stream(default(3))
        with side:
            y = x[:1] + 1
        x.record_stream(side)
        del x
        z = torch.zeros(300, device="toy:3")
    assert toy.waits() == ["allocator"]
    side.synchronize()
    assert y.item() == 2 and z.sum().item() == 0


def test_storages_that_are_resized(any_order: ToyMachine) -> None:
    """A storage of no bytes holds no memory; one that grows keeps what it had."""
    before = torch.accelerator.memory_allocated(0)
    x = torch.ones(4, device="toy:0")
    x.untyped_storage().resize_(1024)
    assert x.tolist() == [1.0] * 4 and torch.accelerator.memory_allocated(0) - before == 1024
    x.untyped_storage().resize_(0)
    assert torch.accelerator.memory_allocated(0) == before


# --- the rest of torch


def test_memory_never_written_is_no_number(any_order: ToyMachine) -> None:
    """New memory is filled with NaN, so that reading it shows."""
    assert math.isnan(torch.empty(4, device="toy:0").sum().item())


def test_autocast(toy: ToyMachine) -> None:
    """Matrix products run in low precision, layer norms in full; gradients have the weights' type."""
    layer, norm = nn.Linear(4, 4).to("toy:1"), nn.LayerNorm(4).to("toy:1")
    with torch.autocast("toy", torch.bfloat16):
        low = layer(torch.ones(2, 4, device="toy:1"))
        full = norm(low)
    full.sum().backward()
    assert (low.dtype, full.dtype) == (torch.bfloat16, torch.float32)
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_gradient_scaling(toy: ToyMachine) -> None:
    """A scaler finds an infinite gradient on a device, leaves out the step and halves its scale."""
    weight = nn.Parameter(torch.ones(2, device="toy:1"))
    optimizer, scaler = torch.optim.SGD([weight], 0.5), torch.amp.GradScaler("toy", init_scale=4.0)
    for factor in (1.0, math.inf):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == [0.5, 0.5] and scaler.get_scale() == 2.0


def test_saved_and_loaded(toy: ToyMachine) -> None:
    """A state comes back where it was, or where it is said to."""
    layer, file = nn.Linear(4, 4).to("toy:1"), io.BytesIO()
    torch.save(layer.state_dict(), file)
    for where, device in ((None, "toy:1"), ("toy:2", "toy:2"), ("cpu", "cpu")):
        file.seek(0)
        weight = torch.load(file, map_location=where)["weight"]
        assert weight.device == torch.device(device) and torch.equal(weight.cpu(), layer.weight.cpu())


def test_copied_modules(toy: ToyMachine) -> None:
    """A deep copy has its own memory, on the same device."""
    layer = nn.Linear(4, 4).to("toy:1")
    other = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
    assert other.weight.device == layer.weight.device and other.weight.count_nonzero().item() == 16


def test_modules_that_move(toy: ToyMachine) -> None:
    """`to`, `to_empty`, `toy()` and a device as context put tensors on a device."""
    with torch.device("meta"):
        layer: Any = nn.Linear(2, 2)
    assert layer.to_empty(device="toy:2").weight.device == torch.device("toy:2")
    assert layer.toy(1).weight.device == torch.device("toy:1")
    with torch.device("toy:3"):
        x: Any = torch.ones(2)
    assert x.is_toy and x.device == torch.device("toy:3") and repr(x) == "tensor([1., 1.], device='toy:3')"


def test_double_backward(any_order: ToyMachine) -> None:
    """A gradient over two devices can be differentiated again."""
    x = torch.tensor([2.0], device="toy:0", requires_grad=True)
    (slope,) = torch.autograd.grad(x.to("toy:1") ** 3, x, create_graph=True)
    slope.to("toy:2").backward()
    assert x.grad is not None
    assert (slope.item(), x.grad.item(), slope.device, x.grad.device) == (12.0, 12.0, x.device, x.device)
