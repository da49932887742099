"""One step of training or of inference, as users write it."""

import inspect
from typing import Any

import torch
from torch import nn

from baechi.cost.optimizers import OPTIMIZERS
from baechi.errors import DryRunError
from baechi.torchlib.fakes.assumptions import stepping
from baechi.torchlib.losses import losses_among

_LEARNING_RATE = 1e-3
_OPTION_VALUE = 0.9
"""For an option that makes an optimizer keep more state, such as momentum."""

Optimizer = str | torch.optim.Optimizer | None


def infer(model: nn.Module, args: Any, kwargs: Any) -> None:
    """Call a model without gradients."""
    with torch.no_grad():
        model(*args, **kwargs)


def train(
    model: nn.Module, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer | None, *, accumulate: bool
) -> None:
    """Forward, backward from the losses, and the optimizer's step."""
    if not accumulate:
        model.zero_grad()
    outputs = model(*args, **kwargs)  # held until the step is over, as training loops do
    torch.autograd.backward(losses_of(outputs))
    if optimizer is not None:
        with stepping(optimizer):
            optimizer.step()


def losses_of(outputs: Any) -> list[torch.Tensor]:
    """Where backward starts: the losses (`losses_among`), and the sum of each larger output among them."""
    losses = [tensor for tensor in losses_among(outputs) if tensor.is_floating_point()]
    if not losses:
        raise DryRunError("the model returned nothing that has a gradient: run it dry for inference")
    return [_number(loss) for loss in losses]


def _number(loss: torch.Tensor) -> torch.Tensor:
    if loss.numel() == 1:
        return loss.sum() if loss.dim() else loss
    # times ones: the gradient of a plain sum is one expanded element, that of a loss function has full size
    return (loss * torch.ones_like(loss)).sum()


def optimizer_for(
    optimizer: Optimizer, model: nn.Module, *, foreach: bool | None
) -> torch.optim.Optimizer | None:
    """A new optimizer of a model."""
    if optimizer is None:
        return None
    try:
        if isinstance(optimizer, torch.optim.Optimizer):
            groups = [dict(group) for group in optimizer.param_groups]
            return type(optimizer)(groups, **_options_of(optimizer))
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        kind, options = _named(optimizer)
        return kind(weights, lr=_LEARNING_RATE, foreach=foreach, **options) if weights else None
    except (TypeError, ValueError) as error:
        raise DryRunError(f"an optimizer like {optimizer!r} cannot be made: {error}") from error


def _options_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its defaults, without those that its class sets by itself (AdamW is an Adam that says so)."""
    taken = inspect.signature(type(optimizer)).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        return dict(optimizer.defaults)
    return {name: value for name, value in optimizer.defaults.items() if name in taken}


def _named(name: str) -> tuple[Any, dict[str, float]]:
    """The class of an optimizer, and the options that its name implies ("momentum": SGD with momentum)."""
    kinds = {key.lower(): kind for key, kind in vars(torch.optim).items() if isinstance(kind, type)}
    if name.lower() in kinds:
        return kinds[name.lower()], {}
    for key, costs in OPTIMIZERS.items():
        if costs.with_option is not None and costs.with_option[1] == name.lower():
            return kinds[key], {costs.with_option[0]: _OPTION_VALUE}
    raise ValueError(f"torch has no optimizer {name!r}")
