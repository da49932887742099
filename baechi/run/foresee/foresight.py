"""A cache of inferred outcomes of layers and functions, kept from step to step."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

from baechi.backend import unwatched
from baechi.records.plan import Plan
from baechi.run.foresee.outcome import Outcome, infer, key_of, no_function_modes
from baechi.run.state.caller_state import CallerState
from baechi.run.state.contents import Contents
from baechi.run.steady.call_contents import KnownContents
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.modules.intercept import original_forward
from baechi.torchlib.operators.functions import function_name
from baechi.torchlib.operators.table import rule_of
from baechi.torchlib.private.modules import (
    EVERY_FORWARD_HOOKS,
    EVERY_FORWARD_PRE_HOOKS,
    backward_hooks,
    backward_pre_hooks,
    forward_hooks,
    forward_pre_hooks,
)

_KEPT = 64
"""For each layer; so many for each node of the plan's graph are kept of all calls together."""

_NEW: Any = object()


class Foresight:
    """A cache of outcomes, keyed by a call's arguments and state.

    Args:
        plan: the plan; it says which modules are called several times.
    """

    def __init__(self, plan: Plan) -> None:
        self._known: dict[Hashable, Outcome | None] = {}
        self._kept = _KEPT * max(len(plan.graph), 1)
        self._several = frozenset(_several(plan))

    def layer(
        self,
        module: nn.Module,
        name: str,
        device: torch.device | None,
        args: Any,
        kwargs: Any,
        contents: Contents | KnownContents,
        caller: CallerState | None = None,
    ) -> Outcome | None:
        """Infer the outcome of a layer call. Nothing is computed.

        Args:
            module: the layer.
            name: its qualified name.
            device: where it runs, as torch knows it; None: where its arguments lie.
            args: its positional arguments.
            kwargs: its keyword arguments.
            contents: what it and its arguments hold.
            caller: the settings of its caller, if they were read already.
        """
        if isinstance(contents, KnownContents):
            known, key = contents.held.outcomes, (contents.looks, caller or CallerState.now())
            outcome: Outcome | None = known.get(key, _NEW)  # the key is hashed once
            if outcome is _NEW:
                if len(known) >= _KEPT:
                    known.clear()
                known[key] = outcome = self._layer(module, name, device, args, kwargs, contents.state)
            return outcome
        return self._layer(module, name, device, args, kwargs, contents.state)

    def _layer(
        self,
        module: nn.Module,
        name: str,
        device: torch.device | None,
        args: Any,
        kwargs: Any,
        state: Hashable,
    ) -> Outcome | None:

        def run() -> Outcome | None:
            with unwatched(), no_function_modes(), left_as_found(module, contents="none") as found:
                before = _other_generators()
                outcome = infer(original_forward(module), args, kwargs, layer=module, device=device)
                # the double shares plain objects and generators with the layer, which a run may change
                changes = found.changed() or _other_generators() != before
                return None if changes else outcome

        return self._remembered((name, state), args, kwargs, run)

    def function(self, func: Any, device: torch.device | None, args: Any, kwargs: Any) -> Outcome | None:
        """Infer the outcome of a torch function.

        Args:
            func: the function.
            device: where it runs, as torch knows it; None: where its arguments lie.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        if rule_of(function_name(func)).needs_values:
            return None

        def run() -> Outcome | None:
            with unwatched(), no_function_modes():
                return infer(func, args, kwargs, device=device)

        return self._remembered((func, device), args, kwargs, run)

    def cannot_wait(self, module: nn.Module, name: str) -> str:
        """Say why a layer may not wait; empty if it may.

        Args:
            module: the layer.
            name: its qualified name.
        """
        in_forward = forward_hooks(module) or forward_pre_hooks(module)
        hooked = in_forward or backward_hooks(module) or backward_pre_hooks(module)
        if hooked or EVERY_FORWARD_HOOKS or EVERY_FORWARD_PRE_HOOKS:
            return "it has hooks, which see real tensors"
        if name in self._several and CallerState.now().autocasts:
            return "its weights are cast once for several calls (autocast)"
        return ""

    def _remembered(
        self, what: Hashable, args: Any, kwargs: Any, run: Callable[[], Outcome | None]
    ) -> Outcome | None:
        try:
            key = (what, key_of(args), key_of(kwargs), CallerState.now())
            hash(key)
        except TypeError:
            return None
        if key not in self._known:
            if len(self._known) >= self._kept:
                self._known.clear()
            self._known[key] = run()
        return self._known[key]


def _other_generators() -> tuple[Any, ...]:
    """The states of Python's and numpy's random generators; a task that waits does not restore these."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()[1].tobytes()


def _several(plan: Plan) -> list[str]:
    """Modules that are called several times, or share weights with others."""
    graph = plan.graph
    calls = Counter([graph.module_of(node) for node in graph.placed()])
    groups = [members for members in graph.groups().values() if len(members) > 1]
    shared = [graph.module_of(node) for members in groups for node in members]
    return [name for name, count in calls.items() if count > 1] + shared
