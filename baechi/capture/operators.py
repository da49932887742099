"""What operators do, as their schemas and torch's own formulas say."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from baechi.backend.nest import tensors_in

_aten = torch.ops.aten

_WRITES_UNSAID = {
    # running statistics are written, and the schema does not say so: positions of the arguments
    _aten.native_batch_norm.default: (3, 4),
    _aten.cudnn_batch_norm.default: (3, 4),
    _aten.miopen_batch_norm.default: (3, 4),
    _aten.batch_norm_update_stats.default: (1, 2),
}

_VIEWS_UNSAID = frozenset({"_unsafe_view", "_reshape_alias"})

_MOVES_NOTHING = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})


def aliases(func: Any) -> bool:
    """Whether an operator's results are views of its arguments, and it computes nothing.

    Args:
        func: an operator overload.
    """
    if func.overloadpacket.__name__ in _VIEWS_UNSAID:
        return True
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def writes_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes in place.

    Args:
        func: an operator overload.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from tensors_in(value)
    for position in _WRITES_UNSAID.get(func, ()):
        yield from tensors_in(args[position])


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of one call, where a formula is known; a multiply-add counts 2.

    Args:
        func: an operator overload.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    packet = func.overloadpacket
    if packet.__name__.startswith("_scaled_dot_product"):
        return _attention_flops(*args[:3])
    if packet is _aten.mkldnn_rnn_layer:
        return _recurrent_flops(args[0], args[1], args[2])
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=result)) if formula else 0


def moved_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Bytes that one call reads and writes.

    Args:
        func: an operator overload.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    if func.overloadpacket.__name__ in _MOVES_NOTHING:
        return 0
    if func.overloadpacket in (_aten.embedding, _aten.index_select, _aten.gather):
        return 2 * sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(result))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(args, kwargs, result))


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Two batched products: query by key, and weights by value."""
    *batch, targets, width = query.shape
    sources, depth = value.shape[-2:]
    return 2 * int(torch.Size(batch).numel()) * targets * sources * (width + depth)


def _recurrent_flops(inputs: torch.Tensor, weight: torch.Tensor, recurrent: torch.Tensor) -> int:
    """One layer, one direction: both products at every step."""
    steps = inputs.numel() // inputs.shape[-1]
    return 2 * steps * (weight.numel() + recurrent.numel())
