"""What code inside a step asks of the runtime, and of the mode under which the model's code runs."""

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.records.plan import Plan


class OpenStep(Protocol):
    """The open step, as the shards of a split layer know it."""

    backend: AbstractBackend
    turns: Iterator[int]

    def shards_of(self, weight: Any) -> tuple[torch.Tensor, ...]:
        """The shards of a weight, each on its device, as those of a layer read them.

        Args:
            weight: a sharded weight.
        """


class OpenMode(Protocol):
    """The mode of the open step: it sees each functional op of the model's code."""

    weight_op_calls: Counter[tuple[str, int]]
    """Of functional ops that read a sharded weight: calls so far, by function and weight."""

    @property
    def step(self) -> OpenStep:
        """The open step."""

    def off(self) -> AbstractContextManager[Any]:
        """Within this context the mode is off: what runs is no code of the model."""

    def joined(self, values: Any) -> Any:
        """Put wholes in the place of sharded outputs.

        Args:
            values: anything; sharded outputs are found in lists, tuples and dicts.
        """


class ModelRuntime(Protocol):
    """The runtime of the model that a step belongs to."""

    plan: Plan
    backend: AbstractBackend
    turns: Iterator[int]
    readers: dict[str, tuple[str, ...]]
    weight_owners: MutableMapping[int, nn.Module]

    @property
    def leaves_sharded(self) -> bool:
        """Whether outputs of a split layer may stay sharded."""

    @property
    def glue(self) -> OpenMode | None:
        """The mode of this thread's open step; None outside a step."""

    def aside(self) -> AbstractContextManager[Any]:
        """Within this context the mode of the open step is off: what runs is no code of the model."""

    def step_until_backward_ends(self) -> None:
        """Open a step in this thread until the running backward ends."""
