"""User hooks on layers and containers get real tensors: deferred ones launch before each hook."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules import module as shared
from torch.utils.hooks import RemovableHandle

from baechi.run.guards.entrances import force_seen
from baechi.torchlib.private.modules import (
    EVERY_FORWARD_HOOKS,
    EVERY_FORWARD_PRE_HOOKS,
    forward_hooks,
    forward_pre_hooks,
)


class HookWatch:
    """Checks a model's modules for user hooks at each step."""

    def __init__(self) -> None:
        self._modules: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[nn.Module]]]
        self._modules = weakref.WeakKeyDictionary()

    @contextmanager
    def watched(self, root: nn.Module) -> Iterator[None]:
        """Within this context, hooks on modules below a root get no deferred values.

        Args:
            root: the module that the step calls.
        """
        with ExitStack() as stack:
            for module in self._hooked(root):
                _put_before_each(forward_pre_hooks(module), partial(_before_own, module), stack)
                _put_before_each(forward_hooks(module), partial(_after_own, module), stack)
            _put_before_each(EVERY_FORWARD_PRE_HOOKS, _before_any, stack)
            _put_before_each(EVERY_FORWARD_HOOKS, _after_any, stack)
            yield

    def _hooked(self, root: nn.Module) -> list[nn.Module]:
        if root not in self._modules:
            self._modules[root] = [weakref.ref(module) for module in root.modules() if module is not root]
        modules = [reference() for reference in self._modules[root]]
        return [m for m in modules if m is not None and (forward_pre_hooks(m) or forward_hooks(m))]


def _put_before_each(hooks: Any, add: Callable[[], RemovableHandle], stack: ExitStack) -> None:
    """Put a hook of ours before each user hook: one hook may return deferred values to the next."""
    for key in list(hooks):
        stack.callback(add().remove)
        hooks.move_to_end(key)


def _before_own(module: nn.Module) -> RemovableHandle:
    return module.register_forward_pre_hook(_look, with_kwargs=True)


def _after_own(module: nn.Module) -> RemovableHandle:
    return module.register_forward_hook(_look, with_kwargs=True)


def _before_any() -> RemovableHandle:
    return shared.register_module_forward_pre_hook(_look)


def _after_any() -> RemovableHandle:
    return shared.register_module_forward_hook(_look, with_kwargs=True)


def _look(module: nn.Module, *values: Any) -> None:
    del module
    force_seen(values, "hooks see real tensors")
