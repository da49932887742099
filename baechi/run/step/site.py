"""Where a functional op runs: where the plan, what it writes in place, or its largest argument says."""

from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.cost.anchor import anchor
from baechi.torchlib.operators.functions import written_in_place
from baechi.torchlib.operators.table import rule_of
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.tensors.layout import sent_and_held_bytes
from baechi.torchlib.tensors.storage import made_at


def site_of_op(
    backend: AbstractBackend, func: Any, name: str, args: Any, kwargs: Any, given: list[torch.Tensor]
) -> tuple[str | None, bool]:
    """Where a functional op runs that the plan does not place."""
    given = given[:1] if rule_of(name).shaped_like else given
    places = [backend.place_of(tensor) for tensor in given]
    on_devices = [index for index, place in enumerate(places) if place in backend.names]
    written = next(iter(written_in_place(func, name, args, kwargs)), None)
    if not on_devices:
        bound = any(not backend.is_unplaced(tensor) for tensor in given)
        if bound and written is not None:  # it holds what lies there now, and sends gradients there
            backend.claim(written, places[0])
        part = _part_beside_host(backend, given) if bound and written is None else None
        return part or (places[0] if bound else None), part is not None
    if written is not None and not backend.is_unplaced(written):
        target = backend.place_of(written)
    else:
        target = places[on_devices[0]]
        if any(places[i] != target for i in on_devices):
            with without_subclass_function():  # of what is still to be computed, too
                sizes = [sent_and_held_bytes(given[i])[0] for i in on_devices]
            turns = [made_at(given[i]) for i in on_devices]
            target = places[on_devices[anchor(list(zip(sizes, turns, strict=True)))]]
    return target, any(place != target for place in places)


def _part_beside_host(backend: AbstractBackend, given: list[torch.Tensor]) -> str | None:
    """A part of the GPU where some of these tensors lie, in no part of it, if others lie on the host.

    A host tensor stays there in `x.to(y.device)`, so the two meet in an op of the code.
    """
    apart = {tensor.device for tensor in given}
    if len(apart) < 2:
        return None
    return next((name for name in backend.names if backend.torch_device(name) in apart), None)
