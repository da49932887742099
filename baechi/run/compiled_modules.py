"""Modules of a distributed model that were compiled in place: those that are layers run compiled.

block.compile()                     marks a block; capture keeps it whole, so it lies on one device
distribute(..., compile="regions")  marks the repeated blocks of a model
assign                              a layer's own forward is compiled; what is no layer runs as written
"""

import contextvars
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from torch import nn

from baechi.run.binding import binding_of
from baechi.run.shares import shares_of
from baechi.torchlib.modules.compiled_modules import is_set_aside, runs_uncompiled, set_aside
from baechi.torchlib.modules.intercept import is_replaced, original_forward
from baechi.torchlib.private.compiler import compiled_call, set_compiled_call
from baechi.torchlib.private.patches import BACKWARD_CONTEXT, MODULE_COMPILE

logger = logging.getLogger(__name__)

_ROWS = (nn.ModuleList, nn.Sequential)


@contextmanager
def blocks_compiled(model: nn.Module, options: Mapping[str, Any] | None) -> Iterator[None]:
    """Compile the repeated blocks of a model in place: modules of one class, with modules inside, in a row.

    Blocks inside of a block are left to it, as accelerate's `compile_regions` leaves them.
    """
    rows = _repeated("", model) if options is not None else ()
    blocks = [name for name, block in rows if compiled_call(block) is None]
    try:
        for name in blocks:
            model.get_submodule(name).compile(**(options or {}))
        yield
    except BaseException:
        uncompile(model, blocks)
        raise
    binding = binding_of(model)
    assert binding is not None
    binding.runtime.blocks = tuple(blocks)  # those that the user compiled stay so after `restore`


def uncompile(model: nn.Module, names: Iterable[str]) -> None:
    """Let modules that `blocks_compiled` compiled run as they were written."""
    for name in names:
        set_compiled_call(model.get_submodule(name), None)


def set_compiled_aside(modules: Iterable[nn.Module], layers: Collection[nn.Module]) -> None:
    """Let layers that were compiled in place run compiled, and what calls layers as it was written."""
    for module in modules:
        if compiled_call(module) is not None:
            is_layer = module in layers
            if is_layer or any(map(is_replaced, module.modules())):
                set_aside(module, runs=is_layer)


def tell_uncompiled(model: nn.Module, name: str = "") -> nn.Module:
    """Say which modules were compiled, and run as they were written."""
    found = [inside or name for inside, module in model.named_modules() if runs_uncompiled(module)]
    if found:
        logger.warning(
            "compiled, but no layer of the plan, so it runs as it was written: %s; compile a block before it "
            "is profiled, and leave it whole",
            ", ".join(found),
        )
    return model


def written_forward(module: nn.Module, name: str) -> Callable[..., Any]:
    """A layer's original forward for a call under a mode of ours, which the compiler cannot enter."""
    if is_set_aside(module) and not runs_uncompiled(module):
        _tell_reaching(name)
    return original_forward(module)


@lru_cache(maxsize=1024)
def _tell_reaching(name: str) -> None:
    logger.warning(
        "compiled, but given tensors of other devices in an object, so it runs as it was written: %s; with "
        "transformers, use_cache=False leaves the key-value cache out",
        name,
    )


def watch_compile() -> None:
    """Patch `Module.compile` so that it knows parts of distributed models, and what torch stashes for the
    backward of compiled code, so that this may run on several devices at once."""
    MODULE_COMPILE.put(_compile)
    BACKWARD_CONTEXT.put(_CONTEXTS)


class _OwnContexts:
    """In place of the context of a backward, which each device's thread enters: Python lets one enter it."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in a copy of the context."""
        return self._context.copy().run(function, *args, **kwargs)


_CONTEXTS = SimpleNamespace(**{**vars(contextvars), "copy_context": _OwnContexts})
"""Python's module, for torch's code."""


def _compile(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    compile_in_place: Callable[..., None] = MODULE_COMPILE.original
    compile_in_place(module, *args, **kwargs)
    binding = binding_of(module)
    is_layer = shares_of(module) is not None or (binding is not None and binding.device is not None)
    set_compiled_aside([module], {module} if is_layer else ())
    tell_uncompiled(module, f"this {type(module).__name__}")


def _repeated(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    children = [(f"{name}.{key}".lstrip("."), child) for key, child in module.named_children()]
    kinds = {type(child) for _, child in children}
    alike = (
        len(children) > 1 and len(kinds) == 1 and all(any(True for _ in c.children()) for _, c in children)
    )
    if alike and isinstance(module, _ROWS):
        yield from children
        return
    for inside, child in children:
        yield from _repeated(inside, child)
