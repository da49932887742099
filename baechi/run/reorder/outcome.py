"""What a plain call will return: its code runs with fake tensors, once for each look of its arguments.

A call is plain if tensors go in and tensors come out: it writes nothing that was there before, draws no
random numbers, changes no attribute. Any other call launches in the code's order.

Torch runs an operation whose inputs are all real for real, even under a fake mode. So the inference runs
a double: the layer's modules and attributes, with fake tensors. The layer itself is not touched, since
another thread may be running it.
"""

import random
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.backend import unwatched
from baechi.run.reorder.deferred_values import Meta
from baechi.run.reorder.held import Held, look_of
from baechi.run.reorder.named_state import NamedState
from baechi.run.reorder.template import NotPlain, slotted
from baechi.run.state.caller_state import CallerState, saved_hooks_aside
from baechi.torchlib.dynamo import CompilerAside
from baechi.torchlib.fakes.at_work import fakes_at_work
from baechi.torchlib.fakes.leaks import clear_known_caches
from baechi.torchlib.fakes.results import without_undefined
from baechi.torchlib.modules.intercept import without_replacement
from baechi.torchlib.operators.facts import draws, facts_of, flat, writes_of
from baechi.torchlib.private.fakes import FakeTensorMode
from baechi.torchlib.private.modes import (
    UntracedDispatchMode,
    function_modes,
    set_function_modes,
    without_subclass_function,
)
from baechi.torchlib.private.tensors import storage_address
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

_KEPT = 64
"""Outcomes for each node of the plan's graph."""

_OURS = "_baechi"
"""How the attributes begin that `distribute` adds to a module."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The inferred result of a plain call.

    Args:
        result: what it returns, with a `Slot` in place of each tensor.
        metas: by slot, the tensor's shape, strides, dtype and device.
        given: by slot, the index of the argument that is returned itself; None for another tensor.
        views: whether it returns views of its arguments only.
    """

    result: Any
    metas: tuple[Meta, ...]
    given: tuple[int | None, ...]
    views: bool


class Outcomes:
    """A cache of outcomes, kept from step to step.

    Args:
        nodes: how many nodes the plan's graph has.
    """

    def __init__(self, nodes: int) -> None:
        self._known: dict[Hashable, Outcome | None] = {}
        self._held: dict[nn.Module, Held] = {}
        self._keys: dict[Hashable, object] = {}
        self._most = _KEPT * max(nodes, 1)

    def held(self, layer: nn.Module) -> Held:
        """What a layer holds now: the note of an earlier call, if it still holds that."""
        held = self._held.get(layer)
        if held is None or held.why_not or not held.is_as_noted():
            if len(self._keys) >= self._most:
                self._forget()
            held = self._held[layer] = Held(layer, self._keys)
        return held

    def _forget(self) -> None:
        for kept in (self._known, self._held, self._keys):
            kept.clear()

    def of_layer(
        self,
        module: nn.Module,
        held: Held,
        device: torch.device | None,
        given: tuple[Any, Any],
        caller: CallerState,
    ) -> Outcome | None:
        """Infer what a layer returns; None if the call is not plain."""
        return self._remembered(
            (held.key, caller), device, given, lambda args, kwargs: _as_double(module, args, kwargs)
        )

    def of_function(
        self, func: Any, device: torch.device | None, given: tuple[Any, Any], caller: CallerState
    ) -> Outcome | None:
        """Infer what a torch function returns; None if the call is not plain."""
        return self._remembered(
            (func, caller), device, given, lambda args, kwargs: (func(*args, **kwargs), ())
        )

    def _remembered(
        self, what: Hashable, device: torch.device | None, given: tuple[Any, Any], run: "_Run"
    ) -> Outcome | None:
        leaves = [id(tensor) for tensor in tensors_in(given)]
        # which arguments are one object matters: to `q is k`, and to which of them is returned
        same = () if len({*leaves}) == len(leaves) else tuple(map(leaves.index, leaves))
        try:
            key = (what, device, look_of(given), same)
            outcome: Outcome | None = self._known.get(key, _NEW)  # the key is hashed once
        except TypeError:
            return None
        if outcome is _NEW:
            if len(self._known) >= self._most:
                self._forget()
            outcome = self._known[key] = infer(run, given, device)
        return outcome


_NEW: Any = object()

_Run = Callable[[Any, Any], tuple[Any, Iterable[torch.Tensor]]]
"""Runs a call with fake arguments; returns what it returns, and the fake tensors that its layer holds."""


def infer(run: "_Run", given: tuple[Any, Any], device: torch.device | None) -> Outcome | None:
    """Run a call with fake tensors only, in a thread without torch modes."""
    watch, drawn, states = _Watch(), False, _random_states()
    modes, cache_was_on = function_modes(), torch.is_autocast_cache_enabled()
    set_function_modes(())
    torch.set_autocast_cache_enabled(False)  # the cache would keep fake casts
    try:  # deferred tensors are only asked for their looks: `without_subclass_function` lets them answer
        with unwatched(), saved_hooks_aside(), without_subclass_function(), fakes_at_work(), CompilerAside():
            outcome, results = _infer(run, given, device, watch)
    except Exception:  # not plain, or fails: then the caller runs it for real, where it fails again
        return None
    finally:
        torch.set_autocast_cache_enabled(cache_was_on)
        set_function_modes(modes)
        drawn = _restored(states)
    watch.own = None
    if any(reference() is not None for reference in watch.made):
        clear_known_caches()  # a library's cache has kept a fake tensor, which must not meet real ones
    kept = any(reference() is not None for reference in results)  # by code that would never get the real one
    return None if kept or drawn else outcome


def _infer(
    run: "_Run", given: tuple[Any, Any], device: torch.device | None, watch: "_Watch"
) -> tuple[Outcome, list[weakref.ref[torch.Tensor]]]:
    fakes: dict[int, torch.Tensor] = {}
    metas = {id(tensor): Meta.of(tensor, device) for tensor in tensors_in(given)}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in fakes:
            fakes[id(tensor)] = _like(metas[id(tensor)])
        return fakes[id(tensor)]

    with FakeTensorMode(), watch:
        args, kwargs = map_tensors(fake, given)
        arguments = list(fakes.values())
        watch.begin()
        result, held = run(args, kwargs)
        found: list[torch.Tensor] = []
        template = slotted(result, found)
        memory = {storage_address(tensor.untyped_storage()) for tensor in held}
        storages = [storage_address(tensor.untyped_storage()) for tensor in found]
        if not found or not memory.isdisjoint(storages):
            raise NotPlain("it returns no tensor, or one that its layer holds")
        index_of = {id(tensor): index for index, tensor in enumerate(arguments)}
        by_slot = tuple([Meta.of(one) for one in found]), tuple([index_of.get(id(one)) for one in found])
        views = watch.own is not None and watch.own.keys().isdisjoint(storages)
        return Outcome(template, *by_slot, views), [
            weakref.ref(one) for one in found if id(one) not in index_of
        ]


class _Watch(UntracedDispatchMode):
    """Refuses what a plain call does not do."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.own: dict[int, torch.Tensor] | None = None
        """By number of its storage, what the call has made; None before it begins."""

    def begin(self) -> None:
        """Begin the call: what was made before is not its own."""
        self.own = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, facts = kwargs or {}, facts_of(func)
        if self.own is not None:
            if draws(func, args, kwargs):
                raise NotPlain(f"{func} draws random numbers")
            for tensor in writes_of(facts, args, kwargs):
                if storage_address(tensor.untyped_storage()) not in self.own:
                    raise NotPlain(f"{func} writes what was there before")
        result = without_undefined(func, args, func(*args, **kwargs))
        for tensor in flat((result,)):
            self.made.append(weakref.ref(tensor))
            if self.own is not None and not facts.aliases:  # held, so that numbers of storages stay unique
                self.own[storage_address(tensor.untyped_storage())] = tensor
        return result


def _as_double(layer: nn.Module, args: Any, kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
    """Run the double of a layer; returns its result, and the fake tensors that the double holds."""
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, torch.Tensor] = {}

    def double(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in tensors:
                made = _like(Meta.of(value))
                parameter = isinstance(value, nn.Parameter)
                tensors[id(value)] = nn.Parameter(made, value.requires_grad) if parameter else made
            return tensors[id(value)]
        if isinstance(value, nn.Module):
            if id(value) not in modules:
                modules[id(value)] = made_module = object.__new__(type(value))
                own = without_replacement(value)  # unwrapped: no layer launches
                vars(made_module).update(
                    {name: double(item) for name, item in own.items() if not name.startswith(_OURS)}
                )
            return modules[id(value)]
        if type(value) is weakref.ref:
            return weakref.ref(double(value()))
        if isinstance(value, dict):
            made_dict = value.copy()
            made_dict.update([(key, double(item)) for key, item in value.items()])
            return made_dict
        if type(value) in (list, tuple):
            return type(value)([double(item) for item in value])
        state.keep(value)  # the double shares it
        return value

    state = NamedState(layer)
    twin = double(layer)
    before = Held(twin, {})
    try:
        result = type(layer).forward(twin, *args, **kwargs)
        if state.changed() or not before.is_as_noted():
            raise NotPlain("it changes what is no tensor")
        return result, list(tensors.values())
    finally:
        state.put_back()
        for module in modules.values():  # what it made and holds is released without the garbage collector
            vars(module).clear()


class _Made(torch.autograd.Function):
    """Makes a tensor that looks like the result of an operation to autograd."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _like(meta: Meta) -> torch.Tensor:
    """Make a fake tensor; a fake mode must be on."""
    made = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=meta.device)
    if meta.requires_grad and torch.is_grad_enabled():  # neither a leaf nor a view
        anchor = torch.empty((), device=meta.device, requires_grad=True)
        computed: torch.Tensor = _Made.apply(anchor, made)  # type: ignore[no-untyped-call]
        return computed
    return made.requires_grad_(meta.requires_grad)


def _random_states() -> tuple[Any, ...]:
    """The states of Python's and numpy's random generators, which no operator shows."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _restored(states: tuple[Any, ...]) -> bool:
    """Put these states back; returns whether they had changed."""
    pythons, numpys = states
    now, numpys_now = _random_states()
    if now != pythons:
        random.setstate(pythons)
    drawn = numpys is not None and (numpys_now[2] != numpys[2] or (numpys_now[1] != numpys[1]).any())
    if drawn:
        sys.modules["numpy"].random.set_state(numpys)
    return bool(drawn) or now != pythons
