"""What a model returns over ranks: scalars reach all of them, other outputs stay where they were made."""

from collections.abc import Sequence
from typing import Any

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.run.programs.loop import Values
from baechi.torchlib.elsewhere import ElsewhereTensor


def scalars_shared(backend: RankDevices, values: Sequence[Values]) -> None:
    """Give all ranks the scalars that programs made: by rank one message, of all microbatches."""
    by_rank: dict[int, list[tuple[Values, int, Any]]] = {}
    for one in values:
        for number, node in enumerate(one.compiled.joint.outputs):
            place = None if isinstance(node, int) else one.compiled.place_of(node)
            if place is not None:
                looks = node.meta["val"]  # type: ignore[union-attr]
                if looks.numel() == 1:
                    by_rank.setdefault(backend.ranks[place], []).append((one, number, looks))
    device = backend.message_device
    with backend.packing():  # it takes no device's time where that is emulated
        for source, found in by_rank.items():
            sizes = [looks.dtype.itemsize for _, _, looks in found]
            if source == backend.wires.rank:
                flat = [one.outputs[number].detach().reshape(1).view(torch.uint8) for one, number, _ in found]
                row = torch.cat(flat)
            else:
                row = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
            backend.wires.share(row, source)
            if source != backend.wires.rank:
                for (one, number, looks), part in zip(found, row.split(sizes), strict=True):
                    one.outputs[number] = part.clone().view(looks.dtype).reshape(looks.shape)


def output_here(backend: RankDevices, values: Values, number: int) -> Any:
    """An output of the model on this rank: it, or what says where it lies."""
    node = values.compiled.joint.outputs[number]
    if isinstance(node, int) or number in values.outputs:
        return values.output(number)
    place = values.compiled.place_of(node)
    if place is None or place == backend.own:
        return values.output(number)
    device = backend.named_device(backend.own)
    return ElsewhereTensor(node.meta["val"], place, f"output {number} of the model", device)
