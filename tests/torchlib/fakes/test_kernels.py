"""Operators without values return what real kernels return: sizes, strides, dtypes, memory."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchlib.fakes.by_kernels import ByKernels

from baechi.torchlib.fakes import shapes
from baechi.torchlib.fakes.kernels import (
    ShapeKernels,
    ValuesNeeded,
    refuse_valueless,
    valueless_like,
)
from baechi.torchlib.fakes.valueless import forget_values, is_valueless
from baechi.torchlib.operators.facts import flat
from baechi.torchlib.tensors.pytree import map_tensors
from baechi.torchlib.tensors.storage import storage_bytes

aten = torch.ops.aten


def contiguous() -> Tensor:
    return torch.rand(2, 6, 4, 4)


def channels_last() -> Tensor:
    return contiguous().to(memory_format=torch.channels_last)


def expanded() -> Tensor:
    return torch.rand(2, 6, 1, 1).expand(2, 6, 4, 4)


C = torch.rand(6)
OPERATORS: dict[str, tuple[Any, Callable[[Tensor, Tensor], Any]]] = {
    "elu": (aten.elu_backward.default, lambda x, y: (x, 1.0, 1.0, 1.0, False, y)),
    "hardtanh": (aten.hardtanh_backward.default, lambda x, y: (x, y, -1.0, 1.0)),
    "hardsigmoid": (aten.hardsigmoid_backward.default, lambda x, y: (x, y)),
    "hardswish": (aten.hardswish_backward.default, lambda x, y: (x, y)),
    "softplus": (aten.softplus_backward.default, lambda x, y: (x, y, 1.0, 20.0)),
    "dropout": (aten.native_dropout_backward.default, lambda x, y: (x, y > 0.5, 2.0)),
    "gelu": (aten.gelu_backward.default, lambda x, y: (x, y)),
    "silu": (aten.silu_backward.default, lambda x, y: (x, y)),
    "mse": (aten.mse_loss_backward.default, lambda x, y: (x, y, contiguous(), 0)),
    "smooth l1": (aten.smooth_l1_loss_backward.default, lambda x, y: (x, y, contiguous(), 0, 1.0)),
    "huber": (aten.huber_loss_backward.default, lambda x, y: (x, y, contiguous(), 0, 1.0)),
    "mean squares": (aten.mse_loss.default, lambda x, y: (x, y)),
    "sum of squares": (aten.mse_loss.default, lambda x, y: (x, y, 2)),
    "squares": (aten.mse_loss.default, lambda x, y: (x, y, 0)),
    "mean smooth l1": (aten.smooth_l1_loss.default, lambda x, y: (x, y)),
    "mean cross entropy": (aten.binary_cross_entropy.default, lambda x, y: (x, y)),
    "mean soft margin": (aten.soft_margin_loss.default, lambda x, y: (x, y)),
    "glu": (aten.glu_backward.default, lambda x, y: (x[:, :3].clone(), y, 1)),
    "log softmax": (aten._log_softmax_backward_data.default, lambda x, y: (x, y, 1, torch.float32)),
    "batch norm": (
        aten.native_batch_norm_backward.default,
        lambda x, y: (x, y, C, C, C, C, C, True, 1e-5, [True, True, True]),
    ),
    "batch norm of data": (
        aten.native_batch_norm_backward.default,
        lambda x, y: (x, y, C, C, C, C, C, True, 1e-5, [False, True, True]),
    ),
    "group norm": (
        aten.native_group_norm_backward.default,
        lambda x, y: (x, y, torch.rand(2, 3), torch.rand(2, 3), C, 2, 6, 16, 3, [True, True, True]),
    ),
    "layer norm": (
        aten.native_layer_norm_backward.default,
        lambda x, y: (x, y, [4], *[torch.rand(2, 6, 4, 1)] * 2, *[torch.rand(4)] * 2, [True, True, True]),
    ),
    "convolution": (
        aten.convolution_backward.default,
        lambda x, y: (
            x, y, torch.rand(6, 6, 3, 3), [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True],
        ),
    ),
    "log sigmoid": (aten.log_sigmoid_forward.default, lambda x, y: (x,)),
    "replication pad": (
        aten.replication_pad2d_backward.default,
        lambda x, y: (aten.replication_pad2d(y, [1, 1, 1, 1]), x, [1, 1, 1, 1]),
    ),
    "shuffle": (aten.channel_shuffle.default, lambda x, y: (x, 2)),
    "floor": (aten.floor_divide.default, lambda x, y: (x, y)),
    "roll": (aten.roll.default, lambda x, y: (x, [1], [1])),
    "cat": (aten.cat.default, lambda x, y: ([x, y], 1)),
    "add": (aten.add.Tensor, lambda x, y: (x, y)),
    "split": (aten.unsafe_split.Tensor, lambda x, y: (x, 2, 1)),
    "pad": (aten.constant_pad_nd.default, lambda x, y: (x, [1, 1])),
    "upsample": (aten.upsample_bilinear2d.default, lambda x, y: (x, [8, 8], False, None, None)),
}  # fmt: skip


def described(result: Any) -> list[Any]:
    """Sizes, strides (of dimensions that have several elements), dtypes and memory."""
    return [
        (t.shape, [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1], t.dtype, storage_bytes(t))
        for t in flat(result if isinstance(result, (tuple, list)) else (result,))
    ]


def without_values(tensor: Tensor) -> Tensor:
    return valueless_like([tensor])[0]


@pytest.mark.parametrize("name", OPERATORS)
def test_layouts(name: str) -> None:
    """Whatever the strides of what an operator is given."""
    func, arguments = OPERATORS[name]
    kernels = ShapeKernels()
    for x, y in itertools.product((contiguous, channels_last, expanded), (contiguous, channels_last)):
        args = arguments(x(), y())
        found = kernels.run(func, map_tensors(without_values, args), {})
        assert described(found) == described(func(*args)), (x.__name__, y.__name__)
        assert all(map(is_valueless, flat(found if isinstance(found, (tuple, list)) else (found,))))


def test_strides_of_dimensions_of_one_element() -> None:
    """Kernels that take a tensor and a number keep them, and pooling asks for them; others do not."""
    x = torch.rand(1, 4, 4, 16).as_strided((1, 4, 4, 16), (4, 1, 64, 4))
    blank = valueless_like([x])[0]
    for func, args in ((aten.div.Tensor, (2.0,)), (aten.relu.default, ()), (aten.add.Tensor, (2.0,))):
        assert ShapeKernels().run(func, (blank, *args), {}).stride() == func(x, *args).stride()


def test_small_tensors_with_values_are_computed() -> None:
    """What follows from whole numbers is known; what follows from weights is not."""
    ids, weight = torch.tensor([3, 0, 2]), without_values(torch.rand(4, 8))
    with ByKernels():
        mask = ids > 0
        assert bool(mask.any()) and mask.sum().item() == 2
        rows = torch.nn.functional.embedding(ids, weight)
        assert rows.shape == (3, 8) and is_valueless(rows)
        assert rows[mask].shape == (2, 8)
        with pytest.raises(ValuesNeeded):
            bool(rows.sum() > 0)
        with pytest.raises(ValuesNeeded):
            rows[rows > 0]


def test_numbers_are_supposed_to_be_finite() -> None:
    """So that a model which asks goes on."""
    x = without_values(torch.rand(4, 8))
    with ByKernels():
        assert not bool(torch.isnan(x).any()) and not bool(torch.isinf(x).any())
        assert bool(torch.isfinite(x).all())


def test_what_is_written_without_values_has_none() -> None:
    """Nor have its views, made before or after."""
    known, x = torch.zeros(4), without_values(torch.rand(2))
    before = known[:2]
    with ByKernels():
        assert known.sum().item() == 0
        known[2:].copy_(x)
        for tensor in (known, before, known[1:]):
            with pytest.raises(ValuesNeeded):
                tensor.sum().item()


def test_large_ones_are_not_computed() -> None:
    """However they are made: nothing touches their memory."""
    with ByKernels():
        made = torch.ones(1 << 11, 1 << 11)
        assert is_valueless(made) and made.shape == (2048, 2048)
        assert is_valueless(made.triu()) and not is_valueless(torch.ones(8, 8).triu())


def test_numbers_are_drawn() -> None:
    """The generator is where the same operators with values leave it."""
    x = torch.rand(64)
    torch.manual_seed(0)
    torch.nn.functional.dropout(x), x.clone().uniform_(), torch.rand(3)
    after = torch.rand(())
    torch.manual_seed(0)
    with ByKernels():
        blank = without_values(x)
        torch.nn.functional.dropout(blank), blank.uniform_(), torch.rand(3)
        assert torch.rand(()) == after


def test_a_shape_function_that_refuses() -> None:
    """The kernel itself says, if it is small, what it takes; errors of the code stay errors."""
    kernels = ShapeKernels()
    x, w = without_values(torch.rand(6, 8)), without_values(torch.rand(2, 8, 8))
    offsets = torch.tensor([3, 6], dtype=torch.int32)
    made = kernels.run(aten._grouped_mm.default, (x, w, offsets), {})
    assert made.shape == (6, 8)
    with pytest.raises(RuntimeError):
        kernels.run(aten.mm.default, (x, x), {})


def test_results_share_no_memory() -> None:
    """A recurrent layer's backward has two gradients of biases, which its shape function gives as one."""
    layer = torch.nn.LSTM(8, 8)
    x = torch.rand(5, 3, 8)
    for weight in layer.parameters():
        forget_values(weight)
    forget_values(x)
    with ByKernels():
        layer(x)[0].sum().backward()
    grads = [weight.grad for weight in layer.parameters()]
    assert len({grad.untyped_storage().data_ptr() for grad in grads if grad is not None}) == 4


def test_refusal() -> None:
    """Code that reads memory itself is told what it needs."""
    with pytest.raises(ValuesNeeded, match=r"tolist needs the values of a tensor of shape \(3, 2\)"):
        refuse_valueless(without_values(torch.rand(3, 2)), "tolist")
    refuse_valueless(torch.rand(3, 2), "tolist")


def test_what_is_remembered_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_KEPT", 4)
    monkeypatch.setattr(shapes, "_known", {})
    add = torch.ops.aten.add.Tensor
    for size in (*range(1, 12), 3, 3):
        given = [torch.ones(size), torch.ones(size)]
        assert shapes.Shapes().result_of(add, given, {}, given).size == (size,)
        assert len(shapes._known) <= 4
