"""When kernels run on an emulated device, to the second: a float takes one to be read, written or sent."""

import torch
from backend.virtual.machine.by_hand import (
    after,
    cluster_of,
    compute,
    emulator,
    host_s,
    on,
    row,
    rows,
    side,
    zeros,
)
from torch import nn

import baechi
from baechi.records import Timeline


def test_a_stream_runs_in_order() -> None:
    """Kernels of a stream follow each other without a gap, each as long as what it reads and writes."""
    with cluster_of():
        x = zeros("cpu:0", 3)
        y = x + 1
        y.mul_(x)
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 3.0),
            ("add", "cpu:0", 3.0, 9.0),  # reads 3, writes 3
            ("mul_", "cpu:0", 9.0, 18.0),  # reads 3 and 3, writes 3
        ]


def test_lists_in_place_take_what_their_tensors_take() -> None:
    """An operator on lists that returns nothing writes what it is given, on each device what lies there."""
    with cluster_of(2):
        x, y, z = zeros("cpu:0", 3), zeros("cpu:0", 2), zeros("cpu:1", 4)
        torch._foreach_mul_([x, y, z], 2.0)
        assert [row for row in rows() if row[0] == "_foreach_mul_"] == [
            ("_foreach_mul_", "cpu:1", 4.0, 12.0),
            ("_foreach_mul_", "cpu:0", 5.0, 15.0),  # reads 3 and 2, writes 3 and 2
        ]


def test_views_in_place_are_no_kernels() -> None:
    """What changes how a tensor sees its memory moves nothing."""
    with cluster_of():
        x = zeros("cpu:0", 3)
        x.unsqueeze_(0).t_().transpose_(0, 1).squeeze_(0)
        assert x.shape == (3,) and rows() == [("zeros", "cpu:0", 0.0, 3.0)]


def test_arithmetic_bounds_a_kernel_that_moves_little() -> None:
    """A kernel lasts as long as its arithmetic or its bytes, whichever is more."""
    flops_per_s = {"float32": 1.0, "float64": 0.5}
    cluster = cluster_of(1)
    device = baechi.Device("cpu:0", kind="x", memory_bytes=10**6, flops_per_s=flops_per_s, bytes_per_s=4.0)
    with baechi.Cluster((device,), link=cluster.link, emulated=True, launch_s=0.0):
        x = zeros("cpu:0", 4).view(2, 2)
        torch.mm(x, x)
        x.double().mm(x.double())
        assert [(name, end_s - start_s) for name, _, start_s, end_s in rows()] == [
            ("zeros", 4.0),
            ("mm", 16.0),  # 2 x 2 x 2 x 2 operations; it moves 12 floats
            ("_to_copy", 12.0),
            ("_to_copy", 12.0),
            ("mm", 32.0),
        ]


def test_a_faster_device_takes_less() -> None:
    """A device's speed divides its times."""
    device = baechi.Device("cpu:0", memory_bytes=99, speed=2.0, flops_per_s={"float32": 1.0}, bytes_per_s=4.0)
    with baechi.Cluster((device,), emulated=True, launch_s=0.0):
        zeros("cpu:0", 3)
        assert row("zeros") == ("zeros", "cpu:0", 0.0, 1.5)


def test_streams_of_one_device_share_its_engine() -> None:
    """Two streams of a device do not compute at once; the one that is ready first is first."""
    with cluster_of(), on(side("cpu:0")):
        zeros("cpu:0", 4)
        with on(compute("cpu:0")):
            torch.ones(5, device="cpu:0")
        torch.full((2,), 7.0, device="cpu:0")
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 4.0),
            ("ones", "cpu:0", 4.0, 9.0),
            ("full", "cpu:0", 9.0, 11.0),
        ]


def test_devices_compute_at_once() -> None:
    """Kernels on two devices overlap."""
    with cluster_of(2):
        zeros("cpu:0", 4)
        torch.ones(5, device="cpu:1")
        assert rows() == [("zeros", "cpu:0", 0.0, 4.0), ("ones", "cpu:1", 0.0, 5.0)]


def test_who_is_ready_first_computes_first() -> None:
    """A kernel that waits for another device does not hold up one that was issued after it."""
    with cluster_of(2):
        zeros("cpu:1", 6)
        with on(side("cpu:0")) as aside:
            after(aside, compute("cpu:1"))
            torch.ones(2, device="cpu:0")
        torch.full((4,), 7.0, device="cpu:0")
        torch.arange(3.0, device="cpu:0")
        after(compute("cpu:0"), aside)
        zeros("cpu:0", 1)
        assert [row for row in rows() if row[1] == "cpu:0"] == [
            ("full", "cpu:0", 0.0, 4.0),
            ("arange", "cpu:0", 4.0, 7.0),  # ready at 4: nothing else was
            ("ones", "cpu:0", 7.0, 9.0),
            ("zeros", "cpu:0", 9.0, 10.0),
        ]


def test_everything_is_timed() -> None:
    """A timeline holds what ran on any stream, also one that is not current any more."""
    with cluster_of():
        with on(side("cpu:0")) as aside:
            torch.ones(3, device="cpu:0")
        assert rows() == [("ones", "cpu:0", 0.0, 3.0)]
        assert host_s() == 3.0 and aside.epoch == 1


def test_the_same_program_has_the_same_clocks() -> None:
    """Two runs of a program have identical timelines."""

    def run() -> Timeline:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        cluster = cluster_of(2, launch_s=0.1, latency_s=0.3)
        baechi.distribute(model, torch.ones(2, 3), cluster=cluster, device_map={"0": 1, "1": 0, "2": 1})
        with cluster:
            model(torch.ones(2, 3)).sum().backward()
            torch.optim.Adam(model.parameters()).step()
            return emulator().timeline(by_operator=True)

    assert run() == run()


def test_what_an_operator_makes_of_nothing() -> None:
    """Torch makes a causal mask and says of no device: whoever uses it runs its kernels."""
    with cluster_of():
        q, mask = zeros("cpu:1", 2).view(1, 1, 2, 1), torch.ones(2, 2, dtype=torch.bool).tril()
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True, dropout_p=0.5)
        names = [name for name, where, _, _ in rows() if where == "cpu:1"]
        assert names.count("tril") == names.count("where") == 1
        assert names.index("tril") < names.index("where") < names.index("add") < names.index("_safe_softmax")
        assert mask.device.type == "cpu" and not [n for n, where, _, _ in rows() if where == "cpu:0"]


def test_the_host_waits_for_a_stream_that_nobody_holds() -> None:
    """What ran on a stream that is gone is timed all the same."""
    with cluster_of():
        with on(side("cpu:0")):
            torch.ones(3, device="cpu:0")
        assert rows() == [("ones", "cpu:0", 0.0, 3.0)]


def test_who_is_ready_at_the_same_time_is_served_in_the_order_of_issue() -> None:
    """Of two kernels that get ready at once, the one that was issued first runs first."""
    with cluster_of(3):
        zeros("cpu:0", 10)
        zeros("cpu:1", 10)
        first, second = side("cpu:2", "first"), side("cpu:2", "second")
        after(first, compute("cpu:1"))
        after(second, compute("cpu:0"))
        with on(first):
            torch.ones(5, device="cpu:2")
        with on(second):
            torch.full((5,), 2.0, device="cpu:2")
        after(compute("cpu:2"), first)
        after(compute("cpu:2"), second)
        zeros("cpu:2", 1)
        own = [(row[0], row[2]) for row in rows() if row[1] == "cpu:2"]
    assert own == [("ones", 10.0), ("full", 15.0), ("zeros", 20.0)]
