"""One microbatch's way through the model's code: as any step, and it stops where it is not granted to go on.

What crosses from one stage to another is cut for autograd (`parts`), whatever devices they lie on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.errors import BaechiError
from baechi.run.model_runtime import ModelRuntime
from baechi.run.pipeline.graph.nodes import adopt, begin, renew
from baechi.run.pipeline.graph.parts import Parts
from baechi.run.pipeline.lanes.ahead import HIDDEN, Ahead, Sender
from baechi.run.pipeline.lanes.lane import Lane
from baechi.run.pipeline.lanes.route import Route
from baechi.run.pipeline.lanes.shared_tensors import SharedTensors
from baechi.run.pipeline.lanes.weights_elsewhere import WeightsElsewhere
from baechi.run.steady.arguments import is_no_tensor, is_object
from baechi.run.steady.layers import LayerFacts
from baechi.run.step.aliases import base_of, same_view, view_of_original
from baechi.run.step.call_sites import Site
from baechi.run.step.copies import Copy, writes_of
from baechi.run.step.loans import Loans, version_of, write_back
from baechi.run.step.step import Step
from baechi.torchlib.shards.gradients import leaves_of
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import mark_of
from baechi.torchlib.tensors.weak_table import WeakTable


class LaneStep(Step):
    """The step of one microbatch.

    Args:
        backend: the devices.
        runtime: the model's runtime.
        route: the way through the pipeline's runs.
        lane: the thread, which waits for grants.
        ahead: what is sent as soon as it is made.
        shared: what microbatches share.
        weights: those that are read on other devices.

    Attributes:
        parts: what autograd records of it.
    """

    shards_of = staticmethod(leaves_of)

    def __init__(
        self,
        backend: AbstractBackend,
        runtime: ModelRuntime,
        route: Route,
        lane: Lane,
        ahead: Ahead,
        shared: SharedTensors,
        weights: WeightsElsewhere,
    ) -> None:
        super().__init__(backend, runtime)
        self.bare = frozenset(filter(backend.is_bare, backend.names))
        self.parts = Parts(backend)
        self.boundary = self
        self._route = route
        self._lane = lane
        self._after, self._turn = "", 0
        """The layer call that the code reached last, and how many functional ops it called since."""
        self._ops: Counter[str] = Counter()
        """How many of them by function, of those that the graph has."""
        self._regions: Counter[str] = Counter()
        """How many calls the code made of the modules that backward runs again."""
        self._sender = Sender(ahead)
        self._shared = shared
        self._weights = weights

    def reach(self, layer: str, args: Any, kwargs: Any) -> str:
        call = super().reach(layer, args, kwargs)
        if self.inside is None:
            self._is_after(call)
            given, hidden = list(tensors_in(args, kwargs)), []
            for one in given:
                if self._sender.sites.get(one) is None and self.backend.place_of(one) in self.backend.names:
                    hidden.append(one)
            if hidden:
                self._send(call, HIDDEN, hidden)
            self._go_to(call, given, None)
            self._shared.read(given)
        return call

    def reach_here(self, facts: LayerFacts, values: Iterable[Any], objects: list[Any]) -> str | None:
        """What `reach` does where the code goes on in its part, with what was made there, or in no part."""
        name, number = facts.name, self._calls.get(facts.name, 0)
        call = f"{name}#{number}" if number else name
        run = self._route.run_of.get(call)
        if run is None or run > self._lane.granted:
            return None
        now, recorded = self.parts.now, torch.is_grad_enabled()
        if recorded and (now is None or self.parts.of_stage.get(self._route.stage_of_run[run]) is not now):
            return None
        for value in values:
            if not isinstance(value, torch.Tensor):
                if not is_no_tensor(value):
                    if not is_object(value):
                        return None
                    objects.append(value)
                continue
            if not facts.lies_here(value) or self._sender.sites.get(value) is None:
                return None
            if self._shared.has(value) or (recorded and self.parts.part_of(value) not in (None, now)):
                return None
        self._calls[name] = number + 1
        if self.sites is not None:
            self.sites.reached(call)
        self._is_after(call)
        return call

    def _is_after(self, call: str) -> None:
        """The code has reached a layer: what it calls now is named after it."""
        self.backend.spend("lane_layer", self.backend.host)
        self._after, self._turn = call, 0
        self._ops.clear()

    def stays_here(self, name: str, given: list[torch.Tensor]) -> str | None:
        """Where a functional op runs, if it reads what its own part made, and goes on there; else None."""
        if not given:
            return None
        place_of, shared = self.backend.place_of, self._shared
        now, recorded, place = self.parts.now, torch.is_grad_enabled(), place_of(given[0])
        if place not in self.backend.names or (recorded and (now is None or now.place != place)):
            return None
        for tensor in given:
            if place_of(tensor) != place or shared.has(tensor):
                return None
            if recorded and self.parts.part_of(tensor) not in (None, now):
                return None
        if name in self._route.functions:
            node = self._route.node_at.get(Site(self._after, name, self._ops[name]))
            run = None if node is None else self._route.run_of.get(node)
            if run is not None:
                if run > self._lane.granted:
                    return None
                if recorded and self.parts.of_stage.get(self._route.stage_of_run[run]) is not now:
                    return None
            self._ops[name] += 1
        return place

    def reach_function(self, name: str, place: str, given: list[torch.Tensor]) -> None:
        """Wait until a functional op may run, and choose the part that it belongs to."""
        node = None
        if name in self._route.functions and place in self.backend.names:
            node = self._route.node_at.get(Site(self._after, name, self._ops[name]))
            self._ops[name] += 1
        self._go_to(node, given, place)

    def read_shared(self, given: Iterable[torch.Tensor]) -> None:
        """Note what a functional op reads, once it may run."""
        self._shared.read(given)

    def take_in(self, args: Any) -> Any:
        """Prepare the arguments of an `autograd.Function` that the model's code calls."""
        given = list(tensors_in(args))
        place = next((self.backend.place_of(tensor) for tensor in given), self.backend.host)
        self._go_to(None, given, place)
        return map_tensors(lambda tensor: self.bring(tensor, self.backend.place_of(tensor)), args)

    def reach_region(self, name: str, args: Any, kwargs: Any) -> None:
        runs, number = self._route.runs_of_region.get(name, ()), self._regions[name]
        self._regions[name] += 1
        run = runs[number] if self.inside is None and number < len(runs) else None
        if run is not None:
            self._go_to_run(run, tensors_in(args, kwargs), None)

    def _go_to(self, node: str | None, given: Iterable[torch.Tensor], place: str | None) -> None:
        self._go_to_run(None if node is None else self._route.run_of.get(node), given, place)

    def _go_to_run(self, run: int | None, given: Iterable[torch.Tensor], place: str | None) -> None:
        if run is not None and run > self._lane.granted:
            self.parts.enter(None)  # what this part made is there when its stretch of the code is over
            self._lane.wait_for(run)
        if not torch.is_grad_enabled():
            return
        if (stage := None if run is None else self._route.stage_of_run[run]) is None:
            given = [tensor for tensor in given if tensor.requires_grad]
            stage = self._weights.stage_of(given, place)
        if stage is not None:
            self.parts.enter(self.parts.part_for(stage, self._route.place_of_stage[stage], given))
        elif given:
            now = self.backend.host if self.parts.now is None else self.parts.now.place
            self.parts.enter(self.parts.part_at(place or now, given))

    def leave(self) -> None:
        """The code is over: copies are needed no more, and what comes is recorded in no part."""
        self._copies, self.boundary = WeakTable(), None
        self._sender.leave()
        self.parts.enter(None)

    # --- what crosses between parts

    def is_apart(self, given: Iterable[torch.Tensor]) -> bool:
        if not torch.is_grad_enabled():
            return False
        here = (None, self.parts.now)
        return any(self.parts.part_of(tensor) not in here for tensor in given)

    def here(self, lies_here: Callable[[torch.Tensor], bool]) -> Callable[[torch.Tensor], bool]:
        if not torch.is_grad_enabled():
            return lies_here
        parts = self.parts
        return lambda tensor: lies_here(tensor) and parts.part_of(tensor) in (None, parts.now)

    def bring(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        maker, here = None, self.backend.place_of(tensor)
        if torch.is_grad_enabled():
            maker = self.parts.part_of(tensor)
            if maker is self.parts.now:
                maker = None
            if maker is None and here != place:
                maker = self._weights.home(tensor, self.parts)
        elif here != place and tensor.requires_grad and id(tensor) not in self._weights.homes:
            return self._copied(tensor, here, place)  # what code that records reads there, without its alias
        if maker is None and here == place:
            return tensor
        if maker is None:
            with self._behind(self._first_of(tensor), here, place):
                return super().bring(tensor, place)
        part = self.parts.now
        slots = self._copies.get_or_put(tensor, dict)
        key = (place, *writes_of(tensor), part)
        copy = slots.get(key)
        if copy is not None and copy.version == version_of(copy.tensor):
            return copy.tensor
        if part is None or part.number in maker.above:
            raise BaechiError(
                f"code on {place} reads a tensor that follows from what it makes itself: the model's code "
                "took another path than when it was profiled. Give an example of each path (examples=[...])"
            )
        self.backend.spend("boundary", place)
        cut = self.parts.cut(tensor, maker, here, place)
        with torch.no_grad():
            data = self._plain(tensor) if here == place else self._copied(tensor, here, place)
            data = data.detach()  # what other parts read, too, gets no history
        alias = begin(self.parts.handle, [data], cut)
        slots[key] = Copy(alias, None, version_of(alias))
        return alias

    def _copied(self, tensor: torch.Tensor, here: str, place: str) -> torch.Tensor:
        """The copy of a tensor on another device, or a view of the copy of what it is a view of."""
        if id(tensor) in self._weights.homes:
            return self._weights.copied(tensor, place)
        first = self._sender.first_of(tensor)
        with self._behind(first, here, place):
            copied = super().bring(self._plain(first), place)
        return copied if first is tensor else same_view(tensor, first, copied)

    def _sent(self, tensor: torch.Tensor, here: str, place: str) -> Copy:
        first = self._first_of(tensor)
        if first is tensor:
            return super()._sent(tensor, here, place)
        view = same_view(tensor, first, super().bring(first, place))
        return Copy(view, None, version_of(view))

    def _first_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What travels for a tensor that no part made: what the code got first of its memory, or itself."""
        first = tensor if tensor.requires_grad else self._sender.first_of(tensor)
        return tensor if first.requires_grad else first

    @contextmanager
    def _behind(self, tensor: torch.Tensor, here: str, reader: str | None = None) -> Iterator[None]:
        """Within this context, a transfer waits for what made a tensor, not for all that was issued since.

        Where code on another device reads it now, later microbatches send it there at once.
        """
        names = self.backend.names
        if reader is not None and here != reader and here in names and reader in names:
            if reader not in self.runtime.plan.cluster.on_host:
                self._sender.read(tensor, reader)
        mark = mark_of(tensor)
        self.after = self._weights.ready(tensor, here)
        if self.after is None and mark is not None and not mark.writes:  # else it may be written later
            self.after = self.parts.end_of(tensor, here)
        try:
            yield
        finally:
            self.after = None

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor without its history: of the same memory and version; copies are kept with it."""
        slots = self._copies.get_or_put(tensor, dict)
        key = ("", *writes_of(tensor), None)
        if key not in slots:
            slots[key] = Copy(tensor.detach(), None)
        return slots[key].tensor

    def send_ahead(self, call: str, result: Any) -> None:
        super().send_ahead(call, result)
        self._send(call, 0, result)

    def made(self, result: Any) -> None:
        """Send it to the devices that read it in other microbatches.

        What a Function's own code makes has no history yet, so its result is noted again when it is done.
        """
        self._turn += 1
        self._send(self._after, self._turn, result)

    def _send(self, after: str, turn: int, result: Any) -> None:
        for tensor, places in self._sender.made(after, turn, result):
            if not base_of(tensor).requires_grad:
                self.parts.note(tensor, self.backend.place_of(tensor))
            if places:
                self.push(tensor, places)

    def push(self, tensor: torch.Tensor, places: Iterable[str]) -> None:
        with self._behind(tensor, self.backend.place_of(tensor)):
            if tensor.requires_grad and torch.is_grad_enabled():
                with torch.no_grad():
                    super().push(self._plain(tensor), places)
            else:
                super().push(tensor, places)

    def know(self, place: str, tensor: torch.Tensor, copied: torch.Tensor) -> None:
        if copied.requires_grad and torch.is_grad_enabled():
            key = (place, *writes_of(tensor), self.parts.now)
            self._copies.get_or_put(tensor, dict)[key] = Copy(copied, None, version_of(copied))
        else:
            super().know(place, tensor, copied)

    # --- what is written to aliases and copies

    def loans(self, place: str) -> Loans:
        return Loans(self.backend, partial(self.know, place), self.write_back, self.view_of)

    def write_back(self, original: torch.Tensor, copied: torch.Tensor, *, unsaid: bool) -> None:
        maker = self.parts.part_of(original) if torch.is_grad_enabled() else None
        if maker in (None, self.parts.now):
            write_back(self.backend, original, copied, unsaid=unsaid)
            return
        place = self.backend.place_of(original)
        base = base_of(original)
        if base is original and self.backend.place_of(copied) == place:
            adopt(original, copied)  # they share the memory
            return
        maker = self.parts.part_of(base)
        if maker is not None and maker is not self.parts.now:
            renew(self.parts.handle, base, self.parts.cut(base, maker, place, place))
        write_back(self.backend, original, copied, unsaid=unsaid)

    def view_of(
        self, tensor: torch.Tensor, copied: torch.Tensor, original: torch.Tensor
    ) -> torch.Tensor | None:
        with self.parts.entered(self.parts.part_of(original) or self.parts.now):
            return view_of_original(tensor, copied, original)
