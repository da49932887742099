"""What a model returns over ranks: scalars reach all of them, other outputs stay where they were made."""

from collections.abc import Sequence
from typing import Any

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.run.programs.loop import Values
from baechi.run.ranks.schedule import Scalars
from baechi.torchlib.elsewhere import ElsewhereTensor


def scalars_shared(backend: RankDevices, values: Sequence[Values], scalars: Sequence[Scalars]) -> None:
    """Give all ranks the scalars that programs made."""
    with backend.packing():  # it takes no device's time where that is emulated
        for each in scalars:
            is_here = each.source == backend.wires.rank
            if is_here:
                made = [values[microbatch].outputs[number] for microbatch, number, _ in each.outputs]
                row = torch.stack([one.detach().reshape(()) for one in made])
            else:
                row = torch.empty(len(each.outputs), dtype=each.dtype, device=backend.message_device)
            backend.wires.share(row.view(torch.uint8), each.source)
            if not is_here:
                for (microbatch, number, shape), one in zip(each.outputs, row.unbind(), strict=True):
                    values[microbatch].outputs[number] = one.clone().reshape(shape)


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
