"""Weights that replace others (`load_state_dict(assign=True)`) are moved to the planned devices.

A loaded weight lies where it was read to, often on the host. Load hooks on every module with weights tell
the runtime. The next call moves weights that are not on their planned device.
"""

import functools
from typing import Any

import torch
from torch import nn

from baechi.run.runtime import Runtime
from baechi.torchlib.private.modules import buffer_table, loaded_hooks, parameter_table


def watch_loading(model: nn.Module, runtime: Runtime) -> None:
    """Tell a runtime when weights of a model, or of a submodule, are loaded."""
    for module in model.modules():
        takes_hooks = not isinstance(module, torch.jit.ScriptModule)
        if takes_hooks and (module is model or parameter_table(module) or buffer_table(module)):
            module.register_load_state_dict_post_hook(functools.partial(_loaded, runtime))


def unwatch_loading(model: nn.Module) -> None:
    """Undo `watch_loading`."""
    for module in model.modules():
        hooks = loaded_hooks(module)
        for key in [key for key, hook in hooks.items() if getattr(hook, "func", None) is _loaded]:
            del hooks[key]


def _loaded(runtime: Runtime, module: nn.Module, incompatible_keys: Any) -> None:
    del module, incompatible_keys
    runtime.settled = False
