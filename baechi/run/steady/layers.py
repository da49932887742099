"""What is the same at each call of a layer: its place, whether it writes, and where its tensors are kept."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from baechi.run.steady.reads import reads_in_both_settings
from baechi.torchlib.private.modules import buffer_table, parameter_table, submodule_table

_Tables = tuple[tuple[Any, tuple[Any, ...]], ...]
"""By module of a layer: the table of its submodules, and what is in it."""


class LayerFacts:
    """What is known of a layer from call to call.

    Args:
        module: the layer. What is kept of it are its tables, not the module.
        name: its qualified name.
        place: the device where it runs.
        lies_here: says whether a tensor lies there.
        reaches: whether its code reaches tensors elsewhere, as capture saw it.
        sends: whether the plan sends an output of it ahead.
        reads: whether it writes nothing that other code reads, as far as capture saw.
        in_training: whether it was captured in training. That covers evaluation, too.
    """

    __slots__ = (
        "_modules",
        "_tables",
        "lies_here",
        "name",
        "place",
        "reaches",
        "reads_in_evaluation",
        "reads_in_training",
        "sends",
    )

    def __init__(
        self,
        module: nn.Module,
        name: str,
        place: str,
        lies_here: Callable[[torch.Tensor], bool],
        *,
        reaches: bool,
        sends: bool,
        reads: bool,
        in_training: bool,
    ) -> None:
        self.name = name
        self.reaches = reaches
        self.sends = sends
        self.place = place
        self.lies_here = lies_here
        self.reads_in_evaluation = reads
        self.reads_in_training = reads and (in_training or reads_in_both_settings(module))
        self._modules: _Tables = ()
        self._tables: tuple[Any, ...] = ()
        self._look_into(module)

    def writes(self, module: nn.Module) -> bool:
        """Whether the layer may write what other code reads, by its training flag of now."""
        return not (self.reads_in_training if module.training else self.reads_in_evaluation)

    def weights(self, module: nn.Module) -> Iterator[torch.Tensor]:
        """The layer's parameters and buffers as they are now; one that is shared may come twice."""
        for table, found in self._modules:
            if len(table) != len(found) or any(
                a is not b for a, b in zip(table.values(), found, strict=True)
            ):
                self._look_into(module)  # a submodule was exchanged
                break
        for table in self._tables:
            for tensor in table.values():
                if tensor is not None:
                    yield tensor

    def _look_into(self, module: nn.Module) -> None:
        modules = list(module.modules())
        inside = [submodule_table(one) for one in modules]
        self._modules = tuple([(table, tuple(table.values())) for table in inside])
        self._tables = tuple(
            [table for one in modules for table in (buffer_table(one), parameter_table(one))]
        )
