"""What the runtime of a distributed model noted of its last step."""

from torch import nn

from baechi.run.runtime import Runtime, binding_of


def runtime_of(model: nn.Module) -> Runtime:
    """The runtime of a distributed model."""
    binding = binding_of(model)
    assert binding is not None
    return binding.runtime


def launched_on(model: nn.Module, device: str) -> list[str]:
    """What a device launched in the last step, in order."""
    runtime = runtime_of(model)
    return [layer for layer in runtime.launched if runtime.plan.device_of[layer] == device]
