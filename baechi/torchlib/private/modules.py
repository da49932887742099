"""Modules: the tables that `nn.Module` keeps its weights and hooks in."""

from collections.abc import Callable, Collection, MutableMapping
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.utils import parametrize

from baechi.torchlib.private.lookup import attribute, named

_module = nn.Module()
_Table = MutableMapping[Any, Any]

parameter_table: Callable[[nn.Module], _Table] = attribute(
    _module, "_parameters", "put fake weights in the place of real ones"
)
buffer_table: Callable[[nn.Module], _Table] = attribute(
    _module, "_buffers", "put fake weights in the place of real ones"
)
submodule_table: Callable[[nn.Module], _Table] = attribute(
    _module, "_modules", "see that a part of a layer was exchanged"
)
forward_hooks: Callable[[nn.Module], Any] = attribute(
    _module, "_forward_hooks", "let hooks on a module see tensors that are computed"
)
forward_pre_hooks: Callable[[nn.Module], Any] = attribute(
    _module, "_forward_pre_hooks", "let hooks on a module see tensors that are computed"
)
backward_hooks: Callable[[nn.Module], Any] = attribute(
    _module, "_backward_hooks", "let hooks on a module see tensors that are computed"
)
backward_pre_hooks: Callable[[nn.Module], Any] = attribute(
    _module, "_backward_pre_hooks", "let hooks on a module see tensors that are computed"
)
_flat_names: Callable[[nn.Module], list[str]] = attribute(
    nn.RNN(1, 1, device="meta"),
    "_flat_weights_names",
    "put other weights in the place of a recurrent layer's",
)
loaded_hooks: Callable[[nn.Module], _Table] = attribute(
    _module, "_load_state_dict_post_hooks", "take hooks on loading off again"
)
EVERY_FORWARD_HOOKS: Any = named(
    "torch.nn.modules.module._global_forward_hooks", "let hooks on all modules see tensors that are computed"
)
EVERY_FORWARD_PRE_HOOKS: Any = named(
    "torch.nn.modules.module._global_forward_pre_hooks",
    "let hooks on all modules see tensors that are computed",
)

spectral_kind: Any = named(
    "torch.nn.utils.parametrizations._SpectralNorm",
    "let the vectors of spectral norms stay as they are where a module runs again",
    None,
)

_caches: Callable[[Any], int] = attribute(
    parametrize, "_cache_enabled", "see that weights are computed once (parametrize.cached)"
)


def weights_are_cached() -> bool:
    """Whether the caller is inside of `parametrize.cached()`."""
    return _caches(parametrize) > 0


parse_to: Callable[..., tuple[Any, ...]] = named(
    "torch._C._nn._parse_to", "refuse to move a distributed model to one device"
)
is_tracing: Callable[[], bool] = named("torch._C._is_tracing", "refuse to be traced")

_FLAT, _FLAT_REFS = "_flat_weights", "_flat_weight_refs"

_FLAGS = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
"""Tables beside those of forward hooks, by the same keys."""


def remove_forward_hooks(module: nn.Module, functions: Collection[Callable[..., Any]]) -> None:
    """Remove forward hooks by function, where their handles are lost (the module may be a copy)."""
    for hooks in (forward_pre_hooks(module), forward_hooks(module)):
        for key in [key for key, function in hooks.items() if function in functions]:
            del hooks[key]
            for flags in _FLAGS:
                getattr(module, flags, {}).pop(key, None)


def renew_flat_weights(module: nn.RNNBase) -> None:
    """Let a recurrent layer compute with the weights that it has now: it keeps a list of them."""
    setattr(module, _FLAT, [getattr(module, name, None) for name in _flat_names(module)])


def flat_lists(module: nn.RNNBase) -> tuple[Any, Any]:
    """The lists of its weights that a recurrent layer keeps: they, and weak references to them."""
    return getattr(module, _FLAT), getattr(module, _FLAT_REFS, None)


def flat_lists_now(module: nn.RNNBase) -> tuple[Any, Any]:
    """The same of the weights that it has now."""
    weights = [getattr(module, name, None) for name in _flat_names(module)]
    return weights, [None if one is None else ref(one) for one in weights]


def set_flat_lists(module: nn.RNNBase, lists: tuple[Any, Any]) -> None:
    """Let a recurrent layer keep other lists."""
    setattr(module, _FLAT, lists[0])
    if lists[1] is not None:
        setattr(module, _FLAT_REFS, lists[1])


def has_forward(module: nn.Module) -> bool:
    """Whether a module can be called: a `ModuleList` cannot."""
    return getattr(module.forward, "__name__", "") != "_forward_unimplemented"
