"""Replacing a module's `forward`, and restoring it exactly."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_ORIGINAL = "_baechi_forward"

COMPILED = "_baechi_compiled"
"""The attribute with what was compiled in place; see `compiled`."""


def replace_forward(module: nn.Module, call: Callable[..., Any]) -> None:
    """Replace a module's `forward` by `call(module, *args, **kwargs)`.

    A `functools.partial` over a module-level function is copied and pickled with its module (a
    closure would go on computing with the source's weights). The instance's `__dict__` is written
    directly, since script modules refuse attributes. Signature and docstring stay those of the
    original, which Hugging Face's Trainer reads.
    """
    original = module.forward
    module.__dict__[_ORIGINAL] = module.__dict__.get("forward")
    module.__dict__["forward"] = functools.update_wrapper(functools.partial(call, module), original)


def restore_forward(module: nn.Module) -> None:
    """Undo `replace_forward`: the module is as it was found."""
    if _ORIGINAL not in module.__dict__:
        return
    original = module.__dict__.pop(_ORIGINAL)
    if original is None:
        del module.__dict__["forward"]
    else:
        module.__dict__["forward"] = original


def without_replacement(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module as without a replaced `forward`; the module is not changed."""
    own = dict(vars(module))
    own.pop(COMPILED, None)
    if _ORIGINAL in own:
        original = own.pop(_ORIGINAL)
        own["forward"] = original
        if original is None:
            del own["forward"]
    return own


@contextmanager
def forward_restored(module: nn.Module) -> Iterator[None]:
    """Restore the original `forward` for a while."""
    kept = {name: vars(module)[name] for name in ("forward", _ORIGINAL)} if is_replaced(module) else {}
    restore_forward(module)
    try:
        yield
    finally:
        vars(module).update(kept)


@contextmanager
def forwards_set_aside(modules: Iterable[nn.Module]) -> Iterator[None]:
    """While this is open, modules have their original `forward`."""
    tables = [vars(module) for module in modules if is_replaced(module)]
    kept = [table["forward"] for table in tables]
    try:
        for table in tables:
            if table[_ORIGINAL] is None:
                table.pop("forward", None)
            else:
                table["forward"] = table[_ORIGINAL]
        yield
    finally:
        for table, forward in zip(tables, kept, strict=True):
            table["forward"] = forward


def original_forward(module: nn.Module) -> Callable[..., Any]:
    """The original `forward`, which the replacement hides."""
    original: Callable[..., Any] | None = module.__dict__[_ORIGINAL]
    return type(module).forward.__get__(module) if original is None else original


def forward_to_run(module: nn.Module) -> Callable[..., Any]:
    """The original `forward`, compiled if the module was compiled in place."""
    own = module.__dict__
    compiled = own.get(COMPILED)
    if compiled is not None and compiled.forward is not None:
        found: Callable[..., Any] = compiled.forward
        return found
    original: Callable[..., Any] | None = own[_ORIGINAL]
    return type(module).forward.__get__(module) if original is None else original


def is_replaced(module: nn.Module) -> bool:
    """Whether the module's `forward` is replaced."""
    return _ORIGINAL in module.__dict__
