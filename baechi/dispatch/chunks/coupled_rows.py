"""Models whose result for one row depends on the other rows."""

from torch import nn

from baechi.errors import FatalError

_INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def refuse_coupled(model: nn.Module) -> None:
    """Refuse a model whose result for a row depends on the other rows."""
    for name, module in model.named_modules():
        if _couples(module):
            raise FatalError(
                f"layer {name or '(root)'} ({type(module).__name__}) normalizes over all rows of a batch, "
                "so chunks would have other results: call .eval(), or keep the whole batch in one chunk"
            )


def training_flags(model: nn.Module) -> tuple[bool, ...]:
    """Which modules train: what a model computes may depend on it."""
    return tuple([module.training for module in model.modules()])


def _couples(module: nn.Module) -> bool:
    if isinstance(module, _INSTANCE):  # it normalizes each row; in training it keeps a mean over rows
        return module.training and module.track_running_stats
    return isinstance(module, _BATCH) and (module.training or module.running_mean is None)
