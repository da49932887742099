"""Tensors that lie in another process: shape, dtype and place are known here, and values are not.

    one object in each process        process 0: values       process 1: `ElsewhereTensor`

What works element by element makes another one without values, or does nothing where it is in place: the
process that has the values does it. All else would need values, and raises.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import torch
from torch import nn

from baechi.errors import RankError
from baechi.torchlib.operators.facts import facts_of
from baechi.torchlib.private.modules import (
    buffer_table,
    flat_lists,
    flat_lists_now,
    parameter_table,
    set_flat_lists,
)
from baechi.torchlib.private.operators import TO_COPY, schema_of
from baechi.torchlib.private.tensors import make_wrapper, no_function_override
from baechi.torchlib.tensors.swap_memory import exchange_kind

_ATEN = torch.ops.aten

_IN_PLACE = {
    *(_ATEN.mul_.Tensor, _ATEN.mul_.Scalar, _ATEN.div_.Tensor, _ATEN.div_.Scalar),
    *(_ATEN.add_.Tensor, _ATEN.add_.Scalar, _ATEN.sub_.Tensor, _ATEN.sub_.Scalar),
    *(_ATEN.clamp_.default, _ATEN.clamp_.Tensor, _ATEN.clamp_min_.default, _ATEN.clamp_max_.default),
    *(_ATEN.nan_to_num_.default, _ATEN.lerp_.Scalar, _ATEN.lerp_.Tensor),
    *(_ATEN.zero_.default, _ATEN.fill_.Scalar, _ATEN.fill_.Tensor, _ATEN.neg_.default, _ATEN.copy_.default),
}
"""What does nothing where values are elsewhere, if no value from elsewhere goes into a tensor of here."""

_TO_FILES = (
    "let all ranks call baechi.save(model, folder), or write what baechi.whole_state(model) returns on rank 0"
)

_COPIES = "copy.deepcopy(model.state_dict()) keeps what load_state_dict goes back to; a model is not copied"

_UNSCALES = "aten::_amp_foreach_non_finite_check_and_unscale_"

_SCALES = "each process would see the overflows of its own gradients only; train in bfloat16 without a scaler"

_WRITES = "write it before distribute, or let all ranks call load_state_dict"

_CURES = {
    "the state": "let all ranks call baechi.save(model, folder, optimizer=optimizer)",
    "output": (
        "read it on that rank, or, of what the model returns, let its loss (loss=) be all that you read"
    ),
    "the gradient": (
        "norms of all ranks are those of torch.nn.utils.clip_grad_norm_ and torch.nn.utils.get_total_norm; "
        "else read it on that rank"
    ),
    "": "let all ranks call baechi.whole_state(model), and read it on rank 0; or read it on that rank",
}
"""By what a tensor is called, what to do."""

_LIKE = {
    *(_ATEN.detach.default, _ATEN.alias.default, _ATEN.clone.default, TO_COPY),
    *(_ATEN.zeros_like.default, _ATEN.ones_like.default, _ATEN.full_like.default, _ATEN.empty_like.default),
}
"""What makes a tensor of the same shape; so does what works element by element."""

_JOINED = {_ATEN.cat.default}


class ElsewhereTensor(torch.Tensor):
    """A tensor whose values lie in another process.

    Args:
        like: a tensor whose shape, strides and dtype it has; its values are not kept.
        place: the device where the values lie.
        called: what it is, for errors.
        device: what it says of its device here.

    Attributes:
        place, called: as given.
    """

    place: str
    called: str

    @staticmethod
    def __new__(cls, like: torch.Tensor, place: str, called: str, device: torch.device) -> Self:
        made: Self = make_wrapper(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device, requires_grad=False
        )
        made.place, made.called = place, called
        return made

    def like(self, other: torch.Tensor) -> "ElsewhereTensor":
        """One of the shape of another tensor, which lies where this one does."""
        return ElsewhereTensor(other, self.place, self.called, self.device)

    def goes_with(self, other: torch.Tensor) -> bool:
        """Whether the process that has the values of this tensor has another's: or that is a number."""
        return other.place == self.place if isinstance(other, ElsewhereTensor) else other.dim() == 0

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents
        return f"<{self.called}: {str(self.dtype)[6:]} of shape {tuple(self.shape)} on {self.place}>"

    def refuse(self, what: str, cure: str = "") -> NoReturn:
        """Raise: the values would be needed."""
        cure = cure or next(cure for start, cure in _CURES.items() if self.called.startswith(start))
        raise RankError(
            f"{self.called} lies on {self.place}, so this process has no values of it ({what}): {cure}"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "ElsewhereTensor":
        if isinstance(self, nn.Parameter):  # of a model
            self.refuse("a copy was asked for", _COPIES)
        return self.like(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        is_state = self.called.startswith("the state")
        self.refuse("it was to be written to a file", "" if is_state else _TO_FILES)

    def tolist(self) -> NoReturn:
        """Refused."""
        self.refuse("tolist")

    def numpy(self, *, force: bool = False) -> NoReturn:
        """Refused."""
        del force
        self.refuse("numpy")

    __torch_function__ = no_function_override

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        first = args[0] if args else None
        if isinstance(first, ElsewhereTensor):
            if func in _IN_PLACE:
                return first
            if func in _LIKE or torch.Tag.pointwise in func.tags:
                others = [one for one in [*args, *(kwargs or {}).values()] if isinstance(one, torch.Tensor)]
                if not schema_of(func).is_mutable and all(map(first.goes_with, others)):
                    return first.like(_without_values(func, args, kwargs or {}))
        if func in _JOINED and all(isinstance(one, ElsewhereTensor) for one in first or ()):
            assert first is not None
            shapes = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in first]
            return first[0].like(func(shapes, *args[1:], **(kwargs or {})))
        if isinstance(first, (list, tuple)) and facts_of(func).rule.lists and schema_of(func).is_mutable:
            if schema_of(func).name == _UNSCALES:  # it would leave out steps of some processes
                next(one for one in first if isinstance(one, ElsewhereTensor)).refuse("GradScaler", _SCALES)
            here = [number for number, one in enumerate(first) if not isinstance(one, ElsewhereTensor)]
            if len(here) < len(first):  # each process does its own
                return _of_here(func, here, args, kwargs or {})
        flat = [*args, *(kwargs or {}).values()]
        each = [one for value in flat for one in (value if isinstance(value, (list, tuple)) else [value])]
        cure = _WRITES if isinstance(first, ElsewhereTensor) and schema_of(func).is_mutable else ""
        next(one for one in each if isinstance(one, ElsewhereTensor)).refuse(str(func), cure)


def _without_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """What an operation would make, by its shape, layout and dtype."""

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    kwargs = {name: meta(value) for name, value in kwargs.items() if name != "device"}
    made: torch.Tensor = func(*map(meta, args), **kwargs)
    return made


def _of_here(func: Any, here: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Do an operation in place on the tensors of lists that lie here."""
    length = len(args[0])

    def own(value: Any) -> Any:
        is_list = isinstance(value, (list, tuple)) and len(value) == length
        return [value[number] for number in here] if is_list else value

    if here:
        func(*map(own, args), **{name: own(value) for name, value in kwargs.items()})


def leave_elsewhere(tensor: torch.Tensor, place: str, called: str, device: torch.device) -> torch.Tensor:
    """Let a weight be one whose values lie elsewhere; the object stays. Returns what it was made of."""
    made = ElsewhereTensor(tensor, place, called, device)
    attributes: dict[str, Any] = {"place": place, "called": called}
    if isinstance(tensor, nn.Parameter):
        attributes["_is_param"] = True
    exchange_kind(tensor, made, ElsewhereTensor, attributes)
    return made


class StandIns:
    """Plain tensors that stand in for weights elsewhere while code is followed, which reads no values.

    Their memory is never touched, so the system backs none of it.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._weights: dict[int, torch.Tensor] = {}
        self._flat: dict[nn.RNNBase, tuple[Any, Any]] = {}

    @contextmanager
    def standing(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Within this context they stand in the tables of modules."""
        before: list[tuple[Any, str, torch.Tensor]] = []
        lists: list[tuple[nn.RNNBase, tuple[Any, Any]]] = []
        try:
            for module in modules:
                for table in (parameter_table(module), buffer_table(module)):
                    for name, weight in table.items():
                        if type(weight) is ElsewhereTensor:  # `isinstance` asks a metaclass
                            before.append((table, name, weight))
                            table[name] = self._of(weight)
                if isinstance(module, nn.RNNBase) and any(
                    isinstance(weight, ElsewhereTensor) for weight in flat_lists(module)[0]
                ):
                    lists.append((module, flat_lists(module)))
                    if module not in self._flat:
                        self._flat[module] = flat_lists_now(module)
                    set_flat_lists(module, self._flat[module])
            yield
        finally:
            for module, kept in lists:
                set_flat_lists(module, kept)
            for table, name, weight in before:
                table[name] = weight

    def weight(self, value: Any) -> Any:
        """The weight that a value stands in for; itself if it stands for none."""
        return self._weights.get(id(value), value)

    def _of(self, weight: ElsewhereTensor) -> torch.Tensor:
        known = self._made.get(id(weight))
        if known is None:
            made = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype, device="cpu")
            if isinstance(weight, nn.Parameter):
                made = nn.Parameter(made, requires_grad=weight.requires_grad)
            known = self._made[id(weight)] = weight, made
            self._weights[id(made)] = weight
        _, made = known
        if made.requires_grad != weight.requires_grad:
            made.requires_grad_(weight.requires_grad)
        return made
