"""The rules for torch's own layers, and for one that GPT-2's code uses in their place."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from baechi.errors import ShardedTensorError
from baechi.split.dimension import Compute, ShardRange, SplitDimension, SplitRule

_ROWS = {"rows": SplitDimension({}, "cat", axis=0, takes=0)}


def linear(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """A shard of a `Linear`."""
    del options, shard
    _check_rows(x, 2, dimension)
    return F.linear(x, weight, bias)


def transposed_linear(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """A shard of the linear layer of GPT-2's code, whose weight lies the other way round."""
    del options, shard
    _check_rows(x, 2, dimension)
    return F.linear(x, weight.T, bias)


def embedding(
    options: Mapping[str, Any], dimension: str, shard: ShardRange, indices: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """A shard of an `Embedding`: along `num_embeddings`, rows of other shards are zeros."""
    padding = options["padding_idx"]
    if dimension != "num_embeddings":
        return F.embedding(indices, weight, padding)
    local = indices - shard.start
    inside = torch.ones_like(local, dtype=torch.bool)
    # an index below 0, or beyond the last row, goes to the kernel of the first or last shard: it refuses
    if not shard.is_first:
        inside &= local >= 0
    if not shard.is_last:
        inside &= local < weight.shape[0]
    own = padding is not None and shard.start <= padding < shard.stop
    rows = F.embedding(torch.where(inside, local, 0), weight, padding - shard.start if own else None)
    return torch.where(inside.unsqueeze(-1), rows, 0.0)


def convolution(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """A shard of a `Conv1d`, `Conv2d` or `Conv3d`."""
    del shard
    _check_rows(x, weight.dim(), dimension)
    padding = options["padding"]
    if options["padding_mode"] != "zeros":
        x = F.pad(x, options["_reversed_padding_repeated_twice"], mode=options["padding_mode"])
        padding = 0
    convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3]
    made: torch.Tensor = convolve(x, weight, bias, options["stride"], padding, options["dilation"])
    return made


def transposed_convolution(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """A shard of a `ConvTranspose1d`, `ConvTranspose2d` or `ConvTranspose3d`: some of the rows."""
    del shard
    _check_rows(x, weight.dim(), dimension)
    convolve: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[weight.dim() - 3]
    made: torch.Tensor = convolve(x, weight, bias, **options)
    return made


def group_norm(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """A shard of a `GroupNorm`, whose groups are of channels: some of the rows."""
    del dimension, shard
    # torch's Python function refuses a single value per channel, which a shard of few rows may have
    return torch.group_norm(x, options["num_groups"], weight, bias, options["eps"])


def layer_norm(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """A shard of a `LayerNorm`: some of the rows."""
    del shard
    _check_rows(x, len(options["normalized_shape"]) + 1, dimension)
    return F.layer_norm(x, options["normalized_shape"], weight, bias, options["eps"])


def rms_norm(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
    weight: torch.Tensor | None,
) -> torch.Tensor:
    """A shard of an `RMSNorm`: some of the rows."""
    del shard
    _check_rows(x, len(options["normalized_shape"]) + 1, dimension)
    return F.rms_norm(x, options["normalized_shape"], weight, options["eps"])


def _check_rows(x: torch.Tensor, dims: int, dimension: str) -> None:
    """Raise if a shard of rows is given an input of fewer dimensions: then the first one is not of rows."""
    if dimension == "rows" and x.dim() < dims:
        raise ShardedTensorError(
            f"a layer is split along rows, and its input of shape {tuple(x.shape)} has no dimension of rows "
            "in front: leave the layer out of split=, or give it a batch"
        )


def elementwise(
    function: Callable[..., torch.Tensor],
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    x: torch.Tensor,
) -> torch.Tensor:
    """A shard of a layer that goes element by element: some of the rows."""
    del dimension, shard
    return function(x, **{name: value for name, value in options.items() if name != "inplace"})


def _writes_its_input(layer: Any) -> str:
    return "it writes its input (inplace=True), of which shards have copies" if layer.inplace else ""


def embedding_refuses(layer: Any) -> str:
    """Why an `Embedding` cannot be split; empty if it can."""
    unusual = {
        "max_norm": layer.max_norm,
        "sparse": layer.sparse,
        "scale_grad_by_freq": layer.scale_grad_by_freq,
    }
    found = [f"{name}={value}" for name, value in unusual.items() if value]
    return f"shards do not do what {', '.join(found)} asks for" if found else ""


def _convolution_refuses(layer: Any) -> str:
    return f"shards would cut through its {layer.groups} groups" if layer.groups > 1 else ""


def _linear_rule(compute: Compute, out: int) -> SplitRule:
    """The rule of a linear layer whose weight has outputs along one axis, and inputs along the other."""
    return SplitRule(
        {
            "out": SplitDimension({"weight": out, "bias": 0}, "cat"),
            "in": SplitDimension({"weight": 1 - out}, "sum", takes=-1),
            **_ROWS,
        },
        ("weight", "bias"),
        compute,
    )


def _convolution_rule(axes: int) -> SplitRule:
    channels = -(axes + 1)
    return SplitRule(
        {
            "out_channels": SplitDimension({"weight": 0, "bias": 0}, "cat", channels),
            "in_channels": SplitDimension({"weight": 1}, "sum", takes=channels),
            **_ROWS,
        },
        ("weight", "bias"),
        convolution,
        ("stride", "padding", "dilation", "padding_mode", "_reversed_padding_repeated_twice"),
        _convolution_refuses,
    )


EMBEDDING = SplitRule(
    {
        "num_embeddings": SplitDimension({"weight": 0}, "sum"),
        "dim": SplitDimension({"weight": 1}, "cat"),
        **_ROWS,
    },
    ("weight",),
    embedding,
    ("padding_idx",),
    embedding_refuses,
)
_ELEMENTWISE: dict[str, tuple[Callable[..., torch.Tensor], tuple[str, ...]]] = {
    "ELU": (F.elu, ("alpha", "inplace")),
    "GELU": (F.gelu, ("approximate",)),
    "Hardswish": (F.hardswish, ("inplace",)),
    "LeakyReLU": (F.leaky_relu, ("negative_slope", "inplace")),
    "Mish": (F.mish, ("inplace",)),
    "ReLU": (F.relu, ("inplace",)),
    "ReLU6": (F.relu6, ("inplace",)),
    "SiLU": (F.silu, ("inplace",)),
    "Sigmoid": (torch.sigmoid, ()),
    "Softplus": (F.softplus, ("beta", "threshold")),
    "Tanh": (torch.tanh, ()),
}


def _elementwise_rule(function: Callable[..., torch.Tensor], options: tuple[str, ...]) -> SplitRule:
    refuses: dict[str, Any] = {"refuses": _writes_its_input} if "inplace" in options else {}
    return SplitRule(_ROWS, (), partial(elementwise, function), options, **refuses)


RULES = {
    "torch.nn.modules.linear.Linear": _linear_rule(linear, out=0),
    # by name: nothing of that library is imported
    "transformers.pytorch_utils.Conv1D": _linear_rule(transposed_linear, out=1),
    "torch.nn.modules.sparse.Embedding": EMBEDDING,
    **{f"torch.nn.modules.conv.Conv{axes}d": _convolution_rule(axes) for axes in (1, 2, 3)},
    **{
        f"torch.nn.modules.conv.ConvTranspose{axes}d": SplitRule(
            _ROWS,
            ("weight", "bias"),
            transposed_convolution,
            ("stride", "padding", "output_padding", "groups", "dilation"),
        )
        for axes in (1, 2, 3)
    },
    "torch.nn.modules.normalization.GroupNorm": SplitRule(
        _ROWS, ("weight", "bias"), group_norm, ("num_groups", "eps")
    ),
    "torch.nn.modules.normalization.LayerNorm": SplitRule(
        _ROWS, ("weight", "bias"), layer_norm, ("normalized_shape", "eps")
    ),
    "torch.nn.modules.normalization.RMSNorm": SplitRule(
        _ROWS, ("weight",), rms_norm, ("normalized_shape", "eps")
    ),
    **{f"torch.nn.modules.activation.{name}": _elementwise_rule(*how) for name, how in _ELEMENTWISE.items()},
}
"""By the full name of a class."""
