"""What was wrong with transfers and copies in the first implementation; numbers as in the reference."""

import threading
from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.launch.chains import EVERY_WAY, ORDER, WHERE, Net, chains, linear, values
from run.launched import launched_on
from torch import Tensor

import baechi
from baechi.backend.virtual.devices import VirtualDevices
from baechi.run.step import loans, step


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r5_copies_are_never_stale(reorder: Any) -> None:
    """R5: a tensor at the address of one that is gone is another tensor, and so is one that was written."""

    def code(self: Any, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for factor in range(1, 21):
            total = total + self.b(self.a(x) * factor)  # each made where the last one was
        h = self.a(x) * 1
        first = self.b(h)
        h += 1
        return total + first * self.b(h)

    plain, model = (Net(code, a=linear(), b=linear()) for _ in range(2))
    expected = plain(values())
    cluster = distribute(model, values(), {"a": 0, "b": 1}, ["a"], reorder=reorder)
    with cluster:
        assert torch.equal(model(values()), expected)


def test_r5_a_copy_is_made_once() -> None:
    """R5: a tensor travels once to each device that reads it, however many layers there do."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        result: Tensor = self.b(h) + self.c(h) + self.d(h)
        return result

    model = Net(code, a=linear(), b=linear(), c=linear(), d=linear())
    cluster = distribute(model, values(), {"a": 0, "b": 1, "c": 1, "d": 1}, "adcb")
    with cluster:
        model(values())
        counters = baechi.last_step(model).counters
    assert counters["transfers"] == 3  # the input there, `h` over, the output back
    assert counters["transfer_bytes"] == 3 * values().nbytes


def freed_early(self: Any, x: Tensor) -> Tensor:
    """Copies and their sources go as soon as the code lets go of them."""
    total = self.b(self.a(x))
    for _ in range(3):
        total = self.b(self.a(total))
    result: Tensor = total
    return result


def test_r6_memory_of_copies_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: both ends' allocators are told of each transfer; untold, memory is reused too early."""
    used: list[str] = []
    original = VirtualDevices.use

    def use(self: VirtualDevices, tensor: Tensor, stream: Any) -> None:
        used.append("" if stream is None else stream.name)
        original(self, tensor, stream)

    with torch.no_grad():
        model = Net(freed_early, a=linear(), b=linear())
        cluster = distribute(model, values(), {"a": 0, "b": 1}, ["a"])
        monkeypatch.setattr(VirtualDevices, "use", use)
        with cluster:
            model(values())
        there = ["cpu:0>cpu:1/tx", "cpu:1/compute"]
        assert [name for name in used if name in there] == there * 4
        monkeypatch.setattr(VirtualDevices, "use", lambda self, tensor, stream: None)
        with pytest.raises(baechi.StreamRaceError, match="may still be using it"), cluster:
            model(values())


def test_r7_written_while_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: what writes a tensor in place comes after the transfers that read it."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        k = self.b(h)
        with torch.no_grad():
            h += 1
        result: Tensor = self.a(h) + k
        return result

    plain, model = (Net(code, a=linear(), b=linear()) for _ in range(2))
    with torch.no_grad():
        expected = plain(values())
        cluster = distribute(model, values(), {"a": 0, "b": 1}, ["a"])
        with cluster:
            assert torch.equal(model(values()), expected)
        for module in (step, loans):
            monkeypatch.setattr(module, "wait_for_readers", lambda tensor, backend: None)
        with pytest.raises(baechi.StreamRaceError, match="add_"), cluster:
            model(values())


def test_r8_one_pair_of_streams_for_a_pair_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: streams do not grow with layers: a tx and an rx for each ordered pair of devices."""
    seen: dict[tuple[str, str], set[int]] = {}
    original = VirtualDevices.transfer_streams

    def transfer_streams(self: VirtualDevices, source: str, target: str) -> tuple[Any, Any]:
        tx, rx = original(self, source, target)
        seen.setdefault((source, target), set()).update(s.number for s in (tx, rx) if s is not None)
        return tx, rx

    monkeypatch.setattr(VirtualDevices, "transfer_streams", transfer_streams)
    model = Net(freed_early, a=linear(), b=linear())
    with distribute(model, values(), {"a": 0, "b": 1}, ["a"]):
        for _ in range(2):
            model(values()).sum().backward()
    between = [("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")]
    assert set(seen) == {*between, ("host", "cpu:0"), ("cpu:1", "host"), ("host", "cpu:1")}
    assert [len(seen[pair]) for pair in between] == [2, 2]
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r14_the_host_runs_ahead(reorder: Any) -> None:
    """R14: where nothing is read, the host does not wait for devices, in forward, between steps or after."""
    slow = baechi.Device("cpu:0", "slow", 10**9, flops_per_s={"float32": 1e6}, bytes_per_s=1e6)
    devices = (slow, baechi.Device(**{**slow.body(), "name": "cpu:1"}))
    cluster = baechi.Cluster(devices, emulated=True, launch_s=1e-9)
    model = chains()
    distribute(model, values(64), WHERE, ORDER, cluster=cluster, reorder=reorder)
    with cluster:
        x = values(64).to("cpu:0")
        before_s = cluster.emulation.now_s
        loss = model(x).sum()
        after_forward_s = cluster.emulation.now_s
        loss.backward()
        after_backward_s = cluster.emulation.now_s
        measured = baechi.last_step(model)
    assert after_backward_s - before_s < 1e-5 < measured.makespan_s / 1000
    assert after_forward_s < after_backward_s
    ends = {
        phase: max(span.end_s for span in measured.spans if span.phase == phase)
        for phase in ("forward", "backward")
    }
    assert after_forward_s - before_s < ends["forward"] / 1000 < ends["backward"]


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r14_nothing_to_clear_by_hand(reorder: Any) -> None:
    """R14: steps follow each other without anything between them, and each is like the first."""
    plain, model = chains(), chains()
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    threads = threading.active_count()
    orders, counters, makespans_s = [], [], []
    with cluster:
        for number in range(3):
            x = values() + number
            assert torch.equal(model(x), plain(x))
            measured = baechi.last_step(model)
            orders.append([launched_on(model, device) for device in cluster.names])
            counters.append(dict(measured.counters))
            makespans_s.append(measured.makespan_s)
            assert threading.active_count() == threads
    assert orders == orders[:1] * 3
    assert counters == counters[:1] * 3
    assert makespans_s == pytest.approx(makespans_s[:1] * 3, rel=1e-9)
