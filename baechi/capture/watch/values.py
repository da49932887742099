"""Values that are known though tensors are fake: what depends on integer inputs and constants alone.

Masks, positions and lengths are made of them, and models decide by them (`mask.all()`,
`lengths.max().item()`). Each such fake tensor carries its real value, small as it is, and operations
whose inputs are known run for real beside the fake ones:

    ids, real ── ne(pad) ── all() ── True          the model's `if` gets its answer
    ids, fake ── ne(pad) ── all() ── (fake)        the trace gets its operations

Activations and weights are never known, so this costs next to nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.torchlib.fakes.assumptions import assumed
from baechi.torchlib.operators.facts import facts_of, flat
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.patches import transformers_asks_fakes
from baechi.torchlib.private.tensors import map_only, storage_address

_VALUE = "_baechi_value"

_MOST = 1 << 20
"""Tensors of more elements are not known."""


class _Unknown(Exception):
    """An argument has no value that is known."""


class Values:
    """What is known in one run.

    Args:
        fake: whether tensors are fake; else all is known anyway, and nothing is noted.
    """

    def __init__(self, *, fake: bool) -> None:
        self._fake = fake
        self._spoiled: dict[int, torch.Tensor] = {}

    def note(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Record an input's value, if models may branch on it."""
        with _apart():
            if type(fake) is FakeTensor and not real.is_meta and _may_be_known(real):
                vars(fake)[_VALUE] = real.detach().clone()

    def is_unknown(self, tensor: object) -> bool:
        """Whether a tensor is fake, and its value not known."""
        return type(tensor) is FakeTensor and self._of(tensor) is None

    def run(self, func: Any, args: Any, kwargs: Any, writes: list[torch.Tensor]) -> Any:
        """Run an operation under fake tensors, and for real where its inputs are known."""
        if not self._fake:
            return func(*args, **kwargs)
        known = self._known(func, args, kwargs, writes)
        if known is None:
            for tensor in writes:
                self._spoil(tensor)
            if torch.Tag.data_dependent_output in func.tags:
                answer = assumed(facts_of(func).name, flat([*args, *kwargs.values()]), args, _MOST)
                if answer is not None:
                    return answer
            return func(*args, **kwargs)
        tags = func.tags
        if torch.Tag.data_dependent_output in tags:
            return known()
        if torch.Tag.dynamic_output_shape in tags:
            real = known()
            mode = next(t.fake_mode for t in flat([*args, *kwargs.values()]) if type(t) is FakeTensor)
            return map_only(torch.Tensor, lambda tensor: self._stand_in(tensor, mode), real)
        result = func(*args, **kwargs)
        made = [t for t in flat([result]) if type(t) is FakeTensor]
        if all(t.numel() <= _MOST for t in made) and (made or writes):
            for fake, real in zip(made, flat([known()]), strict=True):
                vars(fake)[_VALUE] = real
        return result

    def _known(
        self, func: Any, args: Any, kwargs: Any, writes: list[torch.Tensor]
    ) -> Callable[[], Any] | None:
        """The same operation for real, if all that it reads is known."""
        if any(map(self._is_never_known, flat([*args, *kwargs.values()]))):  # as nearly always
            return None
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
            return None
        if facts_of(func).rule.unfilled:  # not even once something has filled it
            return None
        if any(type(tensor) is not FakeTensor for tensor in writes):
            return None
        try:
            given = map_only(torch.Tensor, self._value, (args, kwargs))
        except _Unknown:
            return None

        def run() -> Any:
            with _apart():
                return func(*given[0], **given[1])

        return run

    def _is_never_known(self, tensor: torch.Tensor) -> bool:
        if type(tensor) is FakeTensor:
            return self._of(tensor) is None
        return tensor.is_meta or not _may_be_known(tensor)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is FakeTensor:
            value = self._of(tensor)
            if value is None:
                raise _Unknown
            return value
        with _apart():  # a buffer; a copy, since its views may be written
            if tensor.is_meta or not _may_be_known(tensor):
                raise _Unknown
            return tensor.detach().clone()

    def _of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        value: torch.Tensor | None = vars(tensor).get(_VALUE)
        if value is None or storage_address(value.untyped_storage()) in self._spoiled:
            return None
        return value

    def _spoil(self, tensor: torch.Tensor) -> None:
        """Drop the known value of a tensor, and of all that share its memory: unknown data was written."""
        value = vars(tensor).get(_VALUE) if type(tensor) is FakeTensor else None
        if value is not None:
            self._spoiled[storage_address(value.untyped_storage())] = value

    def _stand_in(self, real: torch.Tensor, mode: Any) -> torch.Tensor:
        fake: torch.Tensor = mode.from_tensor(real)
        self.note(fake, real)
        return fake


def _may_be_known(tensor: torch.Tensor) -> bool:
    """Whether models branch on such tensors: small ones of integers or booleans."""
    kind = tensor.dtype
    return (
        not (kind.is_floating_point or kind.is_complex)
        and tensor.numel() <= _MOST
        and tensor.layout == torch.strided
    )


@contextmanager
def _apart() -> Iterator[None]:
    """Compute without being watched."""
    with without_torch_function(), without_dispatch_modes():
        yield


@contextmanager
def told_to_libraries(values: Values) -> Iterator[None]:
    """Let the transformers library read known values, to decide whether a mask is needed."""
    with transformers_asks_fakes().replaced(values.is_unknown):
        yield
