"""What operators do, as their schemas, their tags and torch's own formulas say.

`facts_of` looks at an operator once; capture asks while it watches a model, and the emulated
cluster at every operation, so both mean the same by a write, a kernel, a flop.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import log2
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten

_WRITES_UNSAID = {
    # running statistics are written, and the schema does not say so: positions of the arguments
    _aten.native_batch_norm.default: (3, 4),
    _aten.cudnn_batch_norm.default: (3, 4),
    _aten.miopen_batch_norm.default: (3, 4),
    _aten.batch_norm_update_stats.default: (1, 2),
}

_VIEWS_UNSAID = frozenset({"_unsafe_view", "_reshape_alias"})

_FRESH = frozenset({"lift_fresh"})
"""Hands out what `torch.tensor` has just made: nobody knows it as anything else."""

_COMPUTES_NOTHING = frozenset(
    {
        "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted",
        "set_", "resize_", "record_stream", "lift_fresh", "is_same_size",
        "_has_compatible_shallow_copy_type", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset",
    }
)  # fmt: skip

_READS_RESULT_ONLY = frozenset({"embedding", "index_select", "gather"})
"""Read as many bytes of their first input as they return, not all of it."""

_HOST_ARGUMENTS = frozenset({"indices", "lengths", "batch_sizes", "index_put_indices"})
"""Arguments that may lie on the host though the others do not."""


_TORCH = frozenset({"aten", "prim", "prims"})

_HEAVY = (
    "linalg_", "_linalg_", "cholesky", "triangular_solve", "lu_", "ormqr", "geqrf", "_thnn_fused",
    "_cudnn_rnn", "grid_sampler", "_trilinear", "convolution_overrideable", "_ctc_loss", "quantized",
)  # fmt: skip
"""Operators whose arithmetic is not in proportion to their bytes."""

_known_flops: dict[tuple[Any, ...], int] = {}
_FLOPS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an operator.

    Args:
        name: without namespace and overload.
        kernel: whether it computes something; views, queries and allocations do not.
        aliases: whether its results are views of its arguments.
        writes: positions and names of the arguments that it writes in place.
        returns_written: whether its results are what it wrote.
        waits: whether the host must see its result: a number, or a shape that depends on values.
        lists: whether it takes lists of tensors that may lie on several devices.
        host_arguments: positions of arguments that may lie on the host though others do not.
    """

    name: str
    kernel: bool
    aliases: bool
    writes: tuple[tuple[int, str], ...]
    returns_written: bool
    waits: bool
    lists: bool
    host_arguments: tuple[int, ...]


@cache
def facts_of(func: Any) -> Facts:
    """What is known of an operator.

    Args:
        func: an operator overload.
    """
    name = func.overloadpacket.__name__
    schema = func._schema
    returns = schema.returns
    aliased = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    aliases = name in _VIEWS_UNSAID or (aliased and name not in _FRESH)
    said = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    unsaid = [(i, schema.arguments[i].name) for i in _WRITES_UNSAID.get(func, ())]
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return Facts(
        name=name,
        kernel=not aliases and name not in _COMPUTES_NOTHING,
        aliases=aliases,
        writes=(*said, *unsaid),
        returns_written=bool(returns) and all(r.alias_info and r.alias_info.is_write for r in returns),
        waits=bool(tags & set(func.tags)),
        lists=name.startswith(("_foreach_", "_fused_", "_amp_foreach_")),
        host_arguments=tuple(i for i, a in enumerate(schema.arguments) if a.name in _HOST_ARGUMENTS),
    )


@cache
def is_composite(func: Any) -> bool:
    """Whether an operator only calls other ones.

    Args:
        func: an operator overload.
    """
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


@cache
def notes_views(func: Any) -> bool:
    """Whether torch notes what is a view, and what is written, before it runs an operator.

    Args:
        func: an operator overload.
    """
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "ADInplaceOrView"))


def function_name(func: Any) -> str:
    """The name of what a function mode is told of: an operator's without its overload.

    Args:
        func: a torch function, or an operator.
    """
    named = func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func
    return str(getattr(named, "__name__", ""))


def host_waits(facts: Facts, args: tuple[Any, ...]) -> bool:
    """Whether the host must see a result before it goes on.

    Args:
        facts: of the operator.
        args: its positional arguments. Taking by whole numbers says its shape, taking by a mask does not.
    """
    if facts.name != "index" or not facts.waits:
        return facts.waits
    return any(index.dtype in (torch.bool, torch.uint8) for index in flat(args[1:2]))


def writes_of(facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes in place.

    Args:
        facts: of the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    for position, name in facts.writes:
        yield from flat((args[position] if position < len(args) else kwargs.get(name),))


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of one call, where a formula is known; a multiply-add counts 2.

    Args:
        func: an operator overload.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    formula = _formula_of(func.overloadpacket)
    if formula is None:
        return 0
    if formula is _fourier_flops:  # which depends on more than shapes
        return int(formula(*args, **kwargs))
    key = (func, *[t.shape for t in flat(args)], result.shape if isinstance(result, torch.Tensor) else None)
    if key not in _known_flops:
        if len(_known_flops) >= _FLOPS_KEPT:
            _known_flops.clear()
        _known_flops[key] = int(formula(*args, **kwargs, out_val=result))
    return _known_flops[key]


def is_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call launches a kernel where its tensors lie.

    Args:
        func: an operator overload.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if not facts_of(func).kernel:
        return False
    # constants that torch's own code makes in passing stay on the host; it says nothing of pinning
    return "pin_memory" in kwargs or bool(flat([*args, *kwargs.values()]))


def is_uncounted(func: Any) -> bool:
    """Whether an operator computes a lot, and no formula says how much.

    Args:
        func: an operator overload.
    """
    if _formula_of(func.overloadpacket) is not None:
        return False
    return func.namespace not in _TORCH or func.overloadpacket.__name__.startswith(_HEAVY)


def bytes_of(facts: Facts, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]) -> int:
    """Bytes that one call reads and writes.

    Args:
        facts: of the operator.
        given: the tensors it got.
        made: the tensors it returned.
    """
    if facts.name in _COMPUTES_NOTHING:
        return 0
    returned = sum([tensor.numel() * tensor.element_size() for tensor in made])
    if facts.name in _READS_RESULT_ONLY:
        return 2 * returned
    return returned + sum([tensor.numel() * tensor.element_size() for tensor in given])


def flat(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results: by themselves, or in lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found


@cache
def _formula_of(packet: Any) -> Any:
    if packet.__name__.startswith("_scaled_dot_product") or packet.__name__.startswith("_flash_attention"):
        backward = packet.__name__.endswith("_backward")
        return _attention_backward_flops if backward else _attention_flops
    if packet is _aten.mkldnn_rnn_layer:
        return _recurrent_flops
    if packet.__name__ in ("_fft_r2c", "_fft_c2r", "_fft_c2c"):
        return _fourier_flops
    if packet.__name__ == "_cdist_forward":
        return _distance_flops
    return flop_registry.get(packet)


def _fourier_flops(values: Any, dims: Any, *_: Any, **__: Any) -> int:
    """Five operations for each element and each halving (Cooley and Tukey, 1965)."""
    return int(5 * values.numel() * sum([log2(max(2, values.shape[dim])) for dim in dims]))


def _distance_flops(one: Any, other: Any, *_: Any, **__: Any) -> int:
    """A difference, a product and a sum for each element of each pair."""
    return int(3 * one.numel() * other.shape[-2])


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Two batched products: query by key, and weights by value."""
    *batch, targets, width = query.shape
    sources, depth = value.shape[-2:]
    return int(2 * torch.Size(batch).numel() * targets * sources * (width + depth))


def _attention_backward_flops(_grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Five batched products where forward has two: the weights again, and four gradients."""
    return _attention_flops(query, key, value) * 5 // 2


def _recurrent_flops(inputs: Any, weight: Any, recurrent: Any, *_: Any, **__: Any) -> int:
    """One layer, one direction: both products at every step."""
    steps = inputs.numel() // inputs.shape[-1]
    return int(2 * steps * (weight.numel() + recurrent.numel()))
