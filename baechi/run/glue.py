"""Glue over several devices: `x + y` runs where `cost.anchor` says, and the others travel there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from baechi.backend.marks import made_at
from baechi.backend.nest import tensors_in
from baechi.cost.anchor import anchor, writes_first
from baechi.run.step import Step

_QUERIES = frozenset(
    {"__get__", "__set__", "dim", "size", "numel", "is_floating_point", "stride", "untyped_storage"}
)
"""Questions that launch nothing."""

_KEEP_ARGUMENTS = frozenset(
    {
        "backward", "grad", "register_hook", "retain_grad", "requires_grad_",  # want these very tensors
        "_pack_padded_sequence", "_pad_packed_sequence",  # take lengths on the host
    }
)  # fmt: skip


_WRITE_UNSAID = frozenset({"batch_norm", "instance_norm"})
"""Write running statistics, and no version counter moves."""


class GlueMode(TorchFunctionMode):
    """On while the model's own code runs, off inside layers.

    Args:
        step: the step it works for.
    """

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _QUERIES or name in _KEEP_ARGUMENTS:
            return func(*args, **kwargs)
        given = list(tensors_in(args, kwargs))
        place, mixed = self._place(name, args, kwargs, given)
        if given and writes_first(name):
            self.step.may_write(given[0])
        self.step.may_write(kwargs.get("out"))
        if mixed and place is not None:
            (args, kwargs), loans = self.step.lend((args, kwargs), place)
            result = loans.settle(func(*args, **kwargs), written=name in _WRITE_UNSAID)
        else:
            result = func(*args, **kwargs)
        written = bool(given) and result is given[0]
        self.step.stamp(result, place, renew=written)
        return result

    def _place(
        self, name: str, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]
    ) -> tuple[str | None, bool]:
        """Where the function runs, and whether something must travel there.

        The place is None if the result belongs nowhere yet: nothing that it is made of has a place.
        """
        backend = self.step.backend
        places = [backend.place_of(tensor) for tensor in given]
        on_devices = [index for index, place in enumerate(places) if place in backend.names]
        if not on_devices:
            bound = any(not backend.is_free(tensor) for tensor in given)
            return (places[0] if bound else None), False
        written = next(tensors_in(kwargs.get("out")), None)
        if written is None and writes_first(name) and isinstance(args[0], torch.Tensor):
            written = args[0]
        if written is not None and not backend.is_free(written):
            target = backend.place_of(written)
        else:
            sizes = [given[i].numel() * given[i].element_size() for i in on_devices]
            target = places[on_devices[0]]
            if any(places[i] != target for i in on_devices):
                turns = [made_at(given[i]) for i in on_devices]
                target = places[on_devices[anchor(list(zip(sizes, turns, strict=True)))]]
        return target, any(place != target for place in places)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Take this mode off the stack, wherever in it it stands.

        Torch's fast paths ask whether any function mode is on, so being on and doing nothing would
        change what a layer computes.
        """
        depth = self.leave()
        try:
            yield
        finally:
            if depth is not None:
                _push_below(self, depth)

    def leave(self) -> int | None:
        """Go off the stack of modes for good.

        Returns:
            How many modes stood above this one; None if it was not on the stack.
        """
        above: list[Any] = []
        found = False
        while torch._C._len_torch_function_stack() and not found:
            mode = torch._C._pop_torch_function_stack()
            found = mode is self
            if not found:
                above.append(mode)
        for mode in reversed(above):
            torch._C._push_on_torch_function_stack(mode)
        return len(above) if found else None


def _push_below(mode: TorchFunctionMode, depth: int) -> None:
    above = [torch._C._pop_torch_function_stack() for _ in range(depth)]
    torch._C._push_on_torch_function_stack(mode)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)
