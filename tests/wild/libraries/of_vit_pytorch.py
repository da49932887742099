"""vit-pytorch: its transformers of images, volumes and sequences."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
import vit_pytorch
from torch import nn

from wild.specimen import Choice, Specimen, first_that_runs

_SMALL: dict[str, Any] = {
    **{"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2},
    **{"dim_head": 16, "mlp_dim": 64, "channels": 3, "frames": 4, "frame_patch_size": 2, "seq_len": 32},
    **{"image_patch_size": 8, "spatial_depth": 1, "temporal_depth": 1, "ndim": 2, "input_shape": (32, 32)},
    **{"num_memories_per_layer": 4, "max_tokens_per_depth": (8, 4), "cls_depth": 1, "patch_depth": 1},
    **{"max_seq_len": 64, "dims": (16, 24, 32), "num_register_tokens": 2, "num_residual_streams": 2},
    **{"window_size": 4, "num_latents": 4, "num_layers": 2, "num_heads": 2, "num_jumbo_cls": 1},
    **{"depth_small": 1, "sm_dim": 16, "lg_dim": 32, "num_action_tokens": 2, "jumbo_cls_k": 2},
}
"""Arguments by name, for constructors that do not say them."""

_OF_FILE: dict[str, dict[str, Any]] = {
    "cct": {"embedding_dim": 32, "img_size": 32, "n_conv_layers": 1, "kernel_size": 3, "num_layers": 2},
    "cct_3d": {"embedding_dim": 32, "img_size": 16, "num_frames": 4, "n_conv_layers": 1},
    "cross_vit": {"image_size": 32, "sm_patch_size": 8, "lg_patch_size": 16, "depth": 1},
    "levit": {"image_size": 64, "dim": (16, 24, 32), "depth": 2, "heads": (2, 2, 2), "mlp_mult": 2},
    "mobile_vit": {
        **{"image_size": (64, 64), "dims": [16, 24, 32], "num_classes": 5},
        "channels": [8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32],
    },
    "max_vit": {"dim_conv_stem": 8, "dim": 16, "dim_head": 8, "depth": (1, 1), "window_size": 4},
    "pit": {"image_size": 32, "depth": (1, 1), "heads": 2},
    "nest": {
        "image_size": 32,
        "patch_size": 4,
        "dim": 16,
        "heads": 2,
        "num_hierarchies": 2,
        "block_repeats": (1, 1),
    },
    "t2t": {"t2t_layers": ((7, 4), (3, 2)), "image_size": 32},
}
"""Arguments by file, which come first."""

_BATCHES: tuple[Callable[[], tuple[Any, ...]], ...] = (
    lambda: (torch.randn(2, 3, 32, 32),),
    lambda: (torch.randn(2, 3, 64, 64),),
    lambda: (torch.randn(1, 3, 4, 32, 32),),
    lambda: (torch.randn(1, 3, 224, 224),),
    lambda: (torch.randn(2, 3, 32),),
    lambda: ([torch.randn(3, 32, 32), torch.randn(3, 16, 32)],),
    lambda: ([[torch.randn(3, 32, 32), torch.randn(3, 16, 32)], [torch.randn(3, 24, 32)]],),
    lambda: (torch.randn(1, 3, 4, 16, 16),),
    lambda: (torch.randn(2, 32, 3),),
)


def specimens() -> list[Specimen]:
    """The model of each file."""
    files = [module.name for module in pkgutil.iter_modules(vit_pytorch.__path__)]
    return [first_that_runs("vit-pytorch", file, functools.partial(_choices, file)) for file in files]


def _choices(file: str) -> Iterator[Choice]:
    module = importlib.import_module(f"vit_pytorch.{file}")
    for model in reversed(vars(module).values()):
        if inspect.isclass(model) and issubclass(model, nn.Module) and model.__module__ == module.__name__:
            for inputs in _BATCHES:
                yield functools.partial(_build, model, file), inputs


def _build(model: Any, file: str) -> nn.Module:
    small = _SMALL | _OF_FILE.get(file, {})
    known = inspect.signature(model).parameters
    needed = {name: small[name] for name in known if name in small and _is_asked(known[name], file)}
    return model(**needed)


def _is_asked(parameter: inspect.Parameter, file: str) -> bool:
    """Whether an argument is given: it has no default, would be large, or is of the file's own."""
    large = parameter.name in ("dim_head", "dim", "depth")
    return parameter.default is parameter.empty or large or parameter.name in _OF_FILE.get(file, {})
