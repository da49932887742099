"""What is recorded of a step: spans of layers and phases, from its own beginning."""

import gc

import pytest
import torch
from backend.virtual.machine.by_hand import cluster_of, copy, emulator, host_s, zeros
from run.two import Two
from torch import nn

import baechi
from baechi.backend.virtual.machine.notes import MemoryNotes
from baechi.backend.virtual.machine.record import StepRecord
from baechi.records import Timeline


@pytest.fixture(scope="module")
def trained() -> tuple[Timeline, Timeline]:
    """A step x -> [0 on cpu:0] -> [1 on cpu:0] -> [2 on cpu:1] with its optimizer's: by kernel, by layer."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    cluster = cluster_of(2, launch_s=1.0)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 0, "2": 1})
    with cluster:
        x = torch.ones(1, 2, device="cpu:1")  # from 1 to 3; the step begins at 1
        model(x).backward(torch.ones(1, 2, device="cpu:1"))
        torch.optim.SGD(model.parameters(), 0.1, foreach=False).step()
        return emulator().timeline(by_operator=True), baechi.last_step(model)


def test_a_step_has_layers_and_phases(trained: tuple[Timeline, Timeline]) -> None:
    """Spans name the layer, also in backward, and say whether they are of the model or around it."""
    spans = trained[0].spans
    assert [(span.layer, span.where, span.phase, span.start_s, span.end_s) for span in spans] == [
        ("", "cpu:1", "other", 0.0, 2.0),  # what it still did for the caller when the step began
        ("copy", "cpu:1>cpu:0", "forward", 2.0, 4.0),
        ("0/mm", "cpu:0", "forward", 4.0, 12.0),  # 2 + 4 read, 2 written
        ("1/relu", "cpu:0", "forward", 12.0, 16.0),
        ("1/copy", "cpu:0>cpu:1", "forward", 16.0, 18.0),
        ("2/mm", "cpu:1", "forward", 18.0, 26.0),
        ("ones", "cpu:1", "other", 26.0, 28.0),
        ("2/mm", "cpu:1", "backward", 28.0, 36.0),
        ("2/mm", "cpu:1", "backward", 36.0, 44.0),
        ("2/copy", "cpu:1>cpu:0", "backward", 44.0, 46.0),
        ("add_", "cpu:1", "other", 44.0, 56.0),  # while the gradient of its input is sent
        ("1/threshold_backward", "cpu:0", "backward", 46.0, 52.0),
        ("0/mm", "cpu:0", "backward", 52.0, 60.0),
        ("add_", "cpu:0", "other", 60.0, 72.0),
    ]


def test_a_stay_in_a_layer_is_one_span(trained: tuple[Timeline, Timeline]) -> None:
    """`last_step` shows layers, not kernels; what is around the model has no name."""
    assert [(s.layer, s.where, s.phase, s.start_s, s.end_s) for s in trained[1].spans] == [
        ("", "cpu:1", "other", 0.0, 2.0),
        ("", "cpu:1>cpu:0", "forward", 2.0, 4.0),
        ("0", "cpu:0", "forward", 4.0, 12.0),
        ("1", "cpu:0", "forward", 12.0, 16.0),
        ("1", "cpu:0>cpu:1", "forward", 16.0, 18.0),
        ("2", "cpu:1", "forward", 18.0, 26.0),
        ("", "cpu:1", "other", 26.0, 28.0),
        ("2", "cpu:1", "backward", 28.0, 44.0),
        ("2", "cpu:1>cpu:0", "backward", 44.0, 46.0),
        ("", "cpu:1", "other", 44.0, 56.0),
        ("1", "cpu:0", "backward", 46.0, 52.0),
        ("0", "cpu:0", "backward", 52.0, 60.0),
        ("", "cpu:0", "other", 60.0, 72.0),
    ]


def test_a_step_adds_up(trained: tuple[Timeline, Timeline]) -> None:
    """The makespan is the forward and the backward window; what is around the model has no part in it."""
    for timeline in trained:
        assert timeline.makespan_s == (26.0 - 2.0) + (60.0 - 28.0)
        sent = {"transfers": 3, "transfer_bytes": 24}
        assert timeline.counters == {"kernels": 10, **sent, "host_us": 8_000_000}
        assert timeline.busy_s("cpu:0") == 26.0
        assert timeline.busy_s("cpu:0>cpu:1", "transfer") == 2.0


def test_each_call_begins_a_step() -> None:
    """A second call of a model is a step of its own, with clocks from its beginning, and the same."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    cluster = cluster_of(2, launch_s=1.0)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 0, "2": 1})
    with cluster, torch.no_grad():
        x = torch.ones(1, 2, device="cpu:1")
        emulator().synchronize()
        model(x)
        first = baechi.last_step(model)
        assert host_s() == 3.0 + 1.0 + 24.0  # x, a launch, and what follows from it
        model(x)
        second = baechi.last_step(model)
    assert (first.spans, first.makespan_s, first.counters) == (second.spans, 24.0, second.counters)


def test_downloads_count_in_the_forward_window() -> None:
    """The copy of a model's output to the host is part of its forward, as the copy of its input is."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    cluster = cluster_of(2)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 1})
    with cluster, torch.no_grad():
        model(torch.ones(1, 2))
        phases = {span.where: span.phase for span in baechi.last_step(model).spans}
    assert phases["host>cpu:0"] == "forward"
    assert phases["cpu:1>host"] == "forward"


def test_measurements_of_old_steps_were_kept() -> None:
    """The emulator notes for the last 100,000 layers which autograd nodes they made, so that backward's work
    is that of their step. With each note it kept all that was measured of the step: 90 KB a step of
    a small model, 180 MB in 2,000 steps. A backward of such a step still counts with no other."""
    model, x = Two(lambda m, x: m.b(torch.relu(m.a(x)))), torch.ones(3, 4)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, device_map={"a": 0, "b": 1, "": 1})

    def records() -> list[object]:
        return [one for one in gc.get_objects() if type(one) is StepRecord]

    of_others = records()  # held, so that their ids stay theirs
    with cluster:
        first = model(x).sum()
        for _ in range(10):
            model(x)
        forward = baechi.last_step(model).counters["kernels"]
        first.backward()
        assert baechi.last_step(model).counters["kernels"] == forward
        gc.collect()
        assert len({id(one) for one in records()} - {id(one) for one in of_others}) <= 2


def test_the_memory_of_a_device_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another allocator would be asked for: a storage that grows is a new one; a use that is not over
    makes a release first, and the memory is back when it is."""
    cluster = cluster_of()
    with cluster:
        notes = MemoryNotes(cluster.devices)
        monkeypatch.setattr(emulator().allocator, "_notes", notes)
        x = torch.empty(2, device="cpu:0").resize_(7)
        del x
        y = zeros("cpu:0", 4)
        z = copy(y, "cpu:1")
        del y
        events = [(what, key, size_bytes) for what, key, size_bytes, _ in notes.events[0]]
        first, second = dict.fromkeys([key for _, key, _ in events])
        grown = [("free", first, 0), ("allocate", first, 28), ("free", first, 0)]
        assert events == [("allocate", first, 8), *grown, ("allocate", second, 16), ("release", second, 0)]
        z.sum().item()
        emulator().allocator.restart_peaks()
        assert [event[:2] for event in notes.events[0]][-1] == ("free", second)
