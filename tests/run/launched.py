"""What the runtime of a distributed model noted of its last step."""

from order.interleaved import layers_on
from torch import nn

import baechi
from baechi.run.binding import binding_of
from baechi.run.runtime import Runtime

LAUNCHERS = ("host", "threads")
"""Who launches what waits."""


def runtime_of(model: nn.Module) -> Runtime:
    """The runtime of a distributed model."""
    binding = binding_of(model)
    assert binding is not None
    return binding.runtime


def launched_on(model: nn.Module, device: str) -> list[str]:
    """What a device launched in the last step, in order."""
    runtime = runtime_of(model)
    return [layer for layer in runtime.launched if runtime.plan.device_of[layer] == device]


def assert_planned(model: nn.Module) -> None:
    """In the last step each device launched what the plan has on it, in its order; nothing was forced."""
    plan = baechi.plan_of(model)
    for device in plan.cluster.names:
        assert launched_on(model, device) == layers_on(plan, device)
    assert [str(one) for one in runtime_of(model).forced] == []
