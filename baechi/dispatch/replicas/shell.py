"""A copy of a model's modules around other weights.

The modules are copied, with whatever they hold; weights are not: in the copy stand the tensors that are given
for them. A copy is used again until a module, or an attribute of one, is another.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from baechi.errors import FatalError

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_TABLES = dict


def shell_of(model: nn.Module, weights: Mapping[int, torch.Tensor]) -> nn.Module:
    """Copy a model around other weights."""
    try:
        copied: nn.Module = copy.deepcopy(model, dict(weights))
    except Exception as error:  # attributes may be anything, and refuse in any way
        raise FatalError(
            f"this {type(model).__name__} cannot be copied to another device ({type(error).__name__}: "
            f"{error}): give dispatch a function that makes it, with workers='process', or one device where "
            "it lies"
        ) from error
    return copied


def fingerprint_of(model: nn.Module) -> list[Any]:
    """What is compared to see whether a copy of the modules is still like the model.

    It holds the objects that it compares, so that no id is used again. The inside of lists and dicts is not
    seen, but for the modules' own tables.
    """
    found: list[Any] = []
    for module in model.modules():
        found.append(module)
        for name, value in vars(module).items():
            found.append(name)
            if isinstance(value, _PLAIN):
                found.append(value)
            elif isinstance(value, _TABLES):
                found += [*value.keys(), *value.values()]
            else:
                found.append(value)
    return found


def same_fingerprint(one: list[Any], other: list[Any]) -> bool:
    """Whether two fingerprints are of the same modules."""
    if len(one) != len(other):
        return False
    for left, right in zip(one, other, strict=True):
        if left is right:
            continue
        if not (isinstance(left, _PLAIN) and type(left) is type(right) and left == right):
            return False
    return True
