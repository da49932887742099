"""`with cluster:` gives every tensor a device and lets none be mixed; transfers really copy."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.backend import backend_of
from baechi.backend.transfer import transfer
from baechi.backend.virtual.devices import VirtualDevices
from baechi.errors import BaechiError
from baechi.records import Cluster
from baechi.torchlib.tensors.storage import mark_of

DEVICES = VirtualDevices(("cpu:0", "cpu:1"))


def on(place: str, *shape: int, **options: Any) -> torch.Tensor:
    return transfer(torch.ones(*shape), DEVICES, place).requires_grad_(**options)


def place_of(tensor: torch.Tensor) -> str:
    return DEVICES.place_of(tensor)


def test_results_lie_with_their_inputs() -> None:
    """What is computed from tensors of a device lies there, views and in-place results too."""
    with Cluster.virtual(2):
        x = on("cpu:1", 2, 2, requires_grad=False)
        for result in (x + 1, x.t(), x.mul_(2), torch.cat([x, x]), x.split(1)[1]):
            assert place_of(result) == "cpu:1"
        assert place_of(torch.ones(2) + 1) == "host"


def test_mixing_raises_inside_a_step() -> None:
    """An operation over two devices raises as CUDA does, naming both."""
    cluster = Cluster.virtual(2)
    a, b = on("cpu:0", 2, requires_grad=False), on("cpu:1", 2, requires_grad=False)
    with cluster, backend_of(cluster).step(), pytest.raises(RuntimeError, match="cpu:0 and cpu:1"):
        a + b


def test_mixing_raises_in_backward() -> None:
    """A gradient that comes from another device without a transfer is caught."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return transfer(grad, DEVICES, "cpu:1")

    x = on("cpu:0", 2, requires_grad=True)
    with Cluster.virtual(2), pytest.raises(RuntimeError, match="at least two devices"):
        (Wrong.apply(x * x)).sum().backward()


def test_transfer_carries_gradients_home() -> None:
    """A transfer copies, keeps values, and brings the gradient back to the source's device."""
    x = on("cpu:0", 3, requires_grad=True)
    with Cluster.virtual(2):
        y = transfer(x, DEVICES, "cpu:1")
        assert torch.equal(x.cpu(), y.cpu()) and y.data_ptr() != x.data_ptr() and place_of(y) == "cpu:1"
        (y * y).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x) and place_of(x.grad) == "cpu:0"


def test_double_backward_through_a_transfer() -> None:
    """Gradients of gradients pass a transfer, too."""
    x = on("cpu:0", 3, requires_grad=True)
    y = transfer(x, DEVICES, "cpu:1") ** 3
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, 6 * x)


def test_emulations_do_not_nest_and_leave_no_mode() -> None:
    """A second `with` is refused, the first one ends cleanly, also after an exception."""
    with Cluster.virtual(1):
        with pytest.raises(BaechiError, match="do not nest"), Cluster.virtual(2):
            pass
    with pytest.raises(KeyError), Cluster.virtual(1):
        raise KeyError
    with Cluster.virtual(1):
        assert torch.ones(1).sum() == 1


def test_clusters_to_plan_for_are_not_emulated() -> None:
    """`with` on a cluster that is not emulated says what to do."""
    with pytest.raises(BaechiError, match=r"Cluster\.virtual"), Cluster.uniform(2):
        pass


def test_optimizers_take_lists_over_devices() -> None:
    """Foreach and fused optimizers and gradient clipping run over parameters of several devices."""
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))]
    for weight, place in zip(weights, DEVICES.names, strict=True):
        DEVICES.move_weights([weight], place)
    with Cluster.virtual(2):
        for options in ({"foreach": True}, {"fused": True}):
            optimizer = torch.optim.Adam(weights, **options)  # type: ignore[arg-type]
            sum((w.sum().cpu() for w in weights), torch.zeros(())).backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
    assert torch.equal(weights[0], weights[1])


def test_marks_go_with_their_storage() -> None:
    """Views share the mark, a new storage has none."""
    x = on("cpu:0", 4, requires_grad=False)
    assert mark_of(x.view(2, 2)) is mark_of(x)
    assert mark_of(x.clone()) is None  # outside, nothing is tracked


def test_factories_that_answer_for_a_device() -> None:
    """`torch.tensor` under a default device, and `new_tensor`, make tensors there, as on CUDA."""
    with baechi.Cluster.virtual(2):
        with torch.device("cpu:1"):
            made = torch.zeros(2), torch.tensor([1.0, 2.0]), torch.as_tensor([1.0, 2.0])
        found = [str(tensor.device) for tensor in (*made, made[0].new_tensor([1.0, 2.0]))]
    assert found == ["cpu:1"] * 4


def test_factories_that_are_told_a_device() -> None:
    """What is like another tensor lies where the call says, and empty ones do, as caches begin with."""
    with baechi.Cluster.virtual(2):
        for like in (torch.ones(3), torch.ones(3).to("cpu:0")):
            made = [
                torch.zeros_like(like, device="cpu:1"),
                torch.full_like(like, 2.0, device="cpu:1"),
                torch.rand_like(like, device="cpu:1"),
                like.new_empty(2, device="cpu:1"),
                torch.tensor([], device="cpu:1"),
            ]
            assert [str(tensor.device) for tensor in made] == ["cpu:1"] * 5
        assert torch.cat([made[-1], made[0]]).tolist() == [0.0] * 3


def test_default_devices_afterwards() -> None:
    """A process that enters `with torch.device(...)` for the first time while a cluster is emulated."""
    code = """if True:
        import torch, baechi
        with baechi.Cluster.virtual(2), torch.device("cpu:1"):
            made = torch.tensor(1.0)
        assert str(made.device) == "cpu"
        with torch.device("meta"):
            assert torch.tensor(1.0).is_meta and torch.nn.BatchNorm1d(2).num_batches_tracked.is_meta
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numbers_in_place_of_tensors() -> None:
    """Torch multiplies by a complex number, and views it in backward."""
    with baechi.Cluster.virtual(1):
        x = torch.ones(3, requires_grad=True)
        torch.exp(1j * x).real.sum().backward()
        torch.testing.assert_close(x.grad, -torch.sin(torch.ones(3)))


def test_a_conversion_reads_its_tensor() -> None:
    """Though it names a device, as factories do, of which it is none."""
    with baechi.Cluster.virtual(1):
        x = torch.ones(4).to("cpu:0")
        block: Any = getattr(mark_of(x), "block", None)
        torch.ops.aten._to_copy(x, dtype=torch.float64, device=x.device)
        assert [access.what for access in block.reads.values()] == ["_to_copy"]
