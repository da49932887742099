"""How emulated devices answer when torch asks."""

import re
from collections.abc import Sequence

import torch


def torch_devices(names: Sequence[str]) -> dict[str, torch.device]:
    """How emulated devices answer when torch asks."""
    numbered = all(re.fullmatch(r"cpu:\d+", name) for name in names)
    return {
        name: torch.device("cpu", int(name.removeprefix("cpu:")) if numbered else place)
        for place, name in enumerate(names)
    }
