"""Weights that the model's code passes to layers on other devices than their own.

    weight ─▶ copy for stage 1      one for all microbatches: no task writes a weight that others read
       ▲          │ gradient
       └──────────┘ used in the backward of the weight's own stage, like that of an activation

Autograd alone would add the gradient in the backward of stage 1. The weight's device would wait for it there,
with all that was issued to it later. From the second step on the copy is sent when the step begins.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.backend.transfer import arrive, depart
from baechi.run.pipeline.graph.part import Part
from baechi.run.pipeline.graph.parts import Parts
from baechi.run.pipeline.lanes.ahead import Ahead
from baechi.run.pipeline.lanes.route import Route
from baechi.run.step.copies import Copy, writes_of
from baechi.run.step.loans import version_of
from baechi.torchlib.shards.weight import ShardedWeight


class _Home(NamedTuple):
    """Where the graph has a weight.

    Args:
        name: the weight's.
        stage: the stage.
    """

    name: str
    stage: int


class WeightsElsewhere:
    """A model's weights in one step, for all microbatches.

    Args:
        model: the model.
        route: the way through the pipeline's runs.
        backend: the devices.
        ahead: what is sent as soon as it can be.
        is_unwritten: whether no task has written a tensor of the model yet.

    Attributes:
        homes: by `id` of a weight, where the graph has it.
    """

    def __init__(
        self,
        model: nn.Module,
        route: Route,
        backend: AbstractBackend,
        ahead: Ahead,
        is_unwritten: Callable[[torch.Tensor], bool],
    ) -> None:
        self.homes: dict[int, _Home] = {}
        self._route, self._backend = route, backend
        self._ahead, self._is_unwritten = ahead, is_unwritten
        self._begun: dict[str, Any] = {}
        self._copies: dict[tuple[Any, ...], Copy] = {}
        self._read: dict[tuple[str, str], None] = {}
        for device in backend.names:
            self._begun[device] = backend.record(backend.compute_stream(device))
        weights: dict[str, torch.Tensor] = {}
        for name, weight in model.named_parameters(remove_duplicate=False):
            if weight.requires_grad and not isinstance(weight, ShardedWeight):
                weights[name] = weight
                if name in route.stage_of_weight:
                    self.homes[id(weight)] = _Home(name, route.stage_of_weight[name])
        for name, place in ahead.weights if torch.is_grad_enabled() else ():
            if name in weights and backend.place_of(weights[name]) != place:
                self._send(weights[name], place)

    def ready(self, tensor: torch.Tensor, place: str) -> Any:
        """The event after which a tensor of the model may be read; None if a task may have written it."""
        return self._begun.get(place) if self._is_unwritten(tensor) else None

    def home(self, tensor: torch.Tensor, parts: Parts) -> Part | None:
        """The part whose backward uses a weight's gradient; None if that is the part of now, or not known."""
        known, now = self.homes.get(id(tensor)), parts.now
        home = None if known is None else parts.of_stage.get(known.stage)
        if known is None or home is None or now is None or now.number in home.above:
            return None
        later = self._route.gradients_from[known.stage]  # else the list may name them later
        return home if any(parts.of_stage.get(reader) is now for reader in later) else None

    def stage_of(self, given: Sequence[torch.Tensor], place: str | None) -> int | None:
        """The stage that owns what a function without a node is given: a view of a weight is its own.

        Else the stage that the code is in would take the gradient of the view, from stages that it does not
        know of.
        """
        homes = [self.homes.get(id(one)) for one in given]
        stages = {home.stage for home in homes if home is not None}
        if len(stages) != 1 or None in homes:
            return None
        (stage,) = stages
        return stage if self._route.place_of_stage[stage] == place else None

    def copied(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """A weight's copy on a device, which work issued there from now on may read."""
        self._read[self.homes[id(tensor)].name, place] = None
        copy = self._copies.get((id(tensor), place, *writes_of(tensor)))
        if copy is None or (copy.way is None and copy.version != version_of(copy.tensor)):
            copy = self._send(tensor, place)
        if copy.way is not None:
            copy.tensor, copy.way = arrive(copy.tensor, copy.way), None
            copy.version = version_of(copy.tensor)
        return copy.tensor

    def leave(self) -> None:
        """Forward is over: copies are needed no more. What was read is sent ahead in the next step."""
        self._copies.clear()
        if torch.is_grad_enabled():
            self._ahead.weights, self._read = self._read, {}

    def _send(self, tensor: torch.Tensor, place: str) -> Copy:
        here = self._backend.place_of(tensor)
        with torch.no_grad():
            copy = Copy(*depart(tensor.detach(), self._backend, place, self.ready(tensor, here)))
        self._copies[id(tensor), place, *writes_of(tensor)] = copy
        return copy
