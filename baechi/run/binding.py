"""What links a module to the runtime of its model."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from baechi.run.runtime import Runtime
from baechi.run.steady.layers import LayerFacts

BINDING = "_baechi"
"""The attribute of a module that holds its `Binding`."""


@dataclass(slots=True, eq=False)
class Binding:
    """A module's link to its runtime.

    Args:
        runtime: the runtime, shared by all modules of a model.
        name: the module's qualified name.
        device: where a layer with weights runs; `shares` has those without. None for the root and other
            modules that call layers on several devices.
    """

    runtime: Runtime
    name: str
    device: str | None = None
    facts: LayerFacts | None = field(default=None, init=False)
    """What is known of a layer from call to call."""

    @property
    def seat(self) -> tuple[str, str]:
        """Name and device of a layer."""
        assert self.device is not None
        return self.name, self.device

    def known(self, module: nn.Module) -> LayerFacts:
        """Look into a layer once."""
        facts = self.facts = self.runtime.facts_of(module, self.seat)
        return facts

    def __reduce__(self) -> tuple[Any, ...]:
        return Binding, (self.runtime, self.name, self.device)


def bind(module: nn.Module, binding: Binding) -> None:
    """Link a module to a runtime."""
    module.__dict__[BINDING] = binding


def unbind(module: nn.Module) -> None:
    """Undo `bind`."""
    module.__dict__.pop(BINDING, None)


def binding_of(module: nn.Module) -> Binding | None:
    """The module's link to its runtime; None if it has none."""
    binding: Binding | None = module.__dict__.get(BINDING)
    return binding
