"""What modules have that is no tensor, and that code may write: containers, objects, arrays, generators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi.torchlib.modules.as_found import Keeper
from baechi.torchlib.modules.tables import SMALL_BYTES, numbers_of
from baechi.torchlib.private.modules import buffer_table


@dataclass
class UserState:
    """What is found in attributes of a model's modules, and in what they lead to.

    Args:
        tables: containers and attributes of objects, with the attribute that leads there.
        generators: those of random numbers, without the caller's.
        all: the tables, and small arrays that are no tensors.
    """

    tables: list[tuple[str, Any]] = field(default_factory=list)
    generators: list[torch.Generator] = field(default_factory=list)
    all: list[Any] = field(default_factory=list)


def state_of_user(
    modules: Mapping[str, nn.Module], values: Mapping[str, Sequence[tuple[str, Any]]]
) -> UserState:
    """What modules have, and no tables of torch's."""
    state, keeper = UserState(), Keeper("none")
    for module in modules.values():
        keeper.seen[id(module)] = module
    for name, found in values.items():
        for key, value in found:
            known = len(keeper.containers)
            keeper.keep(value)
            for table, _ in keeper.containers[known:]:
                state.tables.append((f"{name}.{key}".lstrip("."), table))
                state.all.append(table)
    for item in keeper.seen.values():
        if issubclass(type(item), torch.Generator) and item is not torch.default_generator:
            state.generators.append(item)
        elif (numbers := numbers_of(item)) is not None and numbers.size_bytes <= SMALL_BYTES:
            state.all.append(numbers)
    return state


def attribute_tables(model: nn.Module) -> list[Any]:
    """What a model's code may write: attributes of modules and objects, and containers, but not buffers."""
    keeper = Keeper("none")
    for module in model.modules():
        keeper.keep(module)
    shared = {id(buffer_table(module)) for module in model.modules()}
    return [table for table, _ in keeper.containers if id(table) not in shared]
