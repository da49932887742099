"""Which tensors of an optimizer's state belong beside their weight."""

import torch


def state_beside(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> list[torch.Tensor]:
    """The state of a weight that lies where the weight lies.

    A counter of steps stays on the host (also that of a weight that is one number), unless the
    optimizer says that its counters are the device's.
    """
    told = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    return [
        value
        for key, value in optimizer.state.get(weight, {}).items()
        if isinstance(value, torch.Tensor) and (told if key == "step" else value.shape == weight.shape)
    ]
