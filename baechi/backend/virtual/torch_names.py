"""How emulated devices answer when torch asks."""

import re
from collections.abc import Sequence

import torch


def torch_devices(names: Sequence[str]) -> dict[str, torch.device]:
    """How emulated devices answer when torch asks.

    Args:
        names: the devices' names.

    Returns:
        `cpu:k` for a device of that name, if all have such names; else for the k-th device.
    """
    numbered = all(re.fullmatch(r"cpu:\d+", name) for name in names)
    return {
        name: torch.device("cpu", int(name.removeprefix("cpu:")) if numbered else place)
        for place, name in enumerate(names)
    }
