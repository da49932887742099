"""What is in nested values: tensors and numbers, each with its path."""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from . import parts

OBJECTS = (parts.Note, parts.Slots, parts.Channel)
IGNORED = frozenset({"training", "hf_device_map", "forward"})


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a value holds.

    Args:
        value: anything nested.
        path: where it is.
    """
    if isinstance(value, (list, tuple, deque)):
        yield f"{path}.len", len(value)
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}")
    elif isinstance(value, dict):
        yield f"{path}.keys", [str(key) for key in value]
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, OBJECTS):
        names = list(vars(value)) if hasattr(value, "__dict__") else list(value.__slots__)
        for name in names:
            yield from leaves(getattr(value, name), f"{path}.{name}")
    else:
        yield path, value


def attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Tensors and numbers that modules keep in attributes.

    Args:
        model: the model.
    """
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_") and key not in IGNORED and not isinstance(value, nn.Module):
                for path, leaf in leaves(value, f"{name}.{key}"):
                    if isinstance(leaf, (Tensor, int, float, list)):
                        yield path, leaf
