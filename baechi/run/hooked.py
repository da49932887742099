"""Hooks of the user's on layers and containers see real tensors: what waits launches before them."""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as shared

from baechi.run.deferred import force_all

_REASON = "hooks see real tensors"


class HookWatch:
    """The modules of a model, to be looked at for hooks at each step."""

    def __init__(self) -> None:
        self._modules: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[nn.Module]]]
        self._modules = weakref.WeakKeyDictionary()

    @contextmanager
    def watched(self, root: nn.Module) -> Iterator[None]:
        """While this is open, hooks on modules below a root get no deferred values.

        Args:
            root: the module whose step it is.
        """
        with ExitStack() as stack:
            for module in self._hooked(root):
                before = module.register_forward_pre_hook(_before, prepend=True, with_kwargs=True)
                after = module.register_forward_hook(_after, prepend=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            if shared._global_forward_pre_hooks:
                stack.callback(shared.register_module_forward_pre_hook(_before_any).remove)
                _to_the_front(shared._global_forward_pre_hooks)
            if shared._global_forward_hooks:
                stack.callback(shared.register_module_forward_hook(_after).remove)
                _to_the_front(shared._global_forward_hooks)
            yield

    def _hooked(self, root: nn.Module) -> list[nn.Module]:
        if root not in self._modules:
            self._modules[root] = [weakref.ref(module) for module in root.modules() if module is not root]
        modules = [reference() for reference in self._modules[root]]
        return [m for m in modules if m is not None and (m._forward_pre_hooks or m._forward_hooks)]


def _before(module: nn.Module, args: Any, kwargs: Any) -> None:
    del module
    force_all((args, kwargs), _REASON)


def _before_any(module: nn.Module, args: Any) -> None:
    del module
    force_all(args, _REASON)


def _after(module: nn.Module, args: Any, result: Any) -> None:
    del module, args
    force_all(result, _REASON)


def _to_the_front(hooks: Any) -> None:
    hooks.move_to_end(next(reversed(hooks)), last=False)
