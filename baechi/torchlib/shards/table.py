"""What each operator does to shards: by the name of a torch function, or of torch's operator below autograd.

    kind         what                                      of a weight         of an output
    each         element by element                        shard by shard      shard by shard
    view         leaves the axis of shards as it is,       its own shape only  of each shard
                 moves it, or takes some of the shards
    stack        tensors that are cut alike, together      refused             shard by shard, on another axis
    other axes   such as batches or heads are all          refused             shard by shard
                 that it leaves alone
    loss         cross entropy of logits                   refused             of each shard, then of these
    all others                                             see `operators`     joined
    not here                                               by tags, or refused joined

Nothing here needs torch: what stays sharded is planned by the same table.
"""

from functools import cache
from typing import Literal

Kind = Literal[
    "each", "view", "stack", "other axes", "loss", "alike", "new", "copy", "reduce", "norm", "dot", "equal",
    "lists", "fused", "unscale", "same size", "pinned",
]  # fmt: skip
"""What an operator does to shards."""

_ROWS: dict[Kind, str] = {
    "each": (
        "abs add bfloat16 clamp contiguous div double elu erf exp fill float gelu half hardswish leaky_relu "
        "lerp log1p masked_fill mish mul nan_to_num neg pow relu relu6 rsub sigmoid silu softplus sqrt "
        "square sub tanh to true_divide type_as where zero __add__ __mul__ __neg__ __pow__ __radd__ __rmul__ "
        "__rsub__ __sub__ __truediv__"
    ),
    "view": "__getitem__ chunk expand flatten permute reshape split swapaxes transpose unsqueeze view",
    "stack": "cat stack",
    "other axes": "__matmul__ dropout matmul scaled_dot_product_attention softmax",
    "loss": "cross_entropy",
    "alike": "detach alias clone zeros_like ones_like empty_like full_like _to_copy",
    "new": "new_empty new_empty_strided new_zeros new_ones new_full",
    "copy": "copy_",
    "reduce": "sum amax max min amin all any _is_any_true _is_all_true",
    "norm": "linalg_vector_norm norm",
    "dot": "dot vdot",
    "equal": "equal",
    "unscale": "_amp_foreach_non_finite_check_and_unscale_",
    "same size": "is_same_size",
    "pinned": "is_pinned",
}
_KINDS = {name: kind for kind, names in _ROWS.items() for name in names.split()}
_PREFIXES: dict[str, Kind] = {"_foreach_": "lists", "_fused_": "fused"}

LAYERS = {
    "ELU": "elu", "GELU": "gelu", "GELUActivation": "gelu", "Hardswish": "hardswish", "Identity": "to",
    "LeakyReLU": "leaky_relu", "Mish": "mish", "NewGELUActivation": "gelu", "ReLU": "relu", "ReLU6": "relu6",
    "Sigmoid": "sigmoid", "SiLU": "silu", "SiLUActivation": "silu", "Softplus": "softplus", "Tanh": "tanh",
}  # fmt: skip
"""Classes of layers that are such an op, by short name. Their code runs as it is: other ops in it join."""

WEIGHT_OPS = {"linear": "Linear", "embedding": "Embedding"}
"""Functional ops that are split, by name, each with the layer that it stands for. Its weight is the second
tensor that it is given."""


@cache
def kind_of(name: str) -> Kind | None:
    """What an operator does to shards; None if the table does not know it."""
    return _KINDS.get(name) or next(
        (kind for start, kind in _PREFIXES.items() if name.startswith(start)), None
    )
