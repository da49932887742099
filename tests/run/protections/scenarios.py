"""A little model, a plan, and what must come of it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from architectures.base import noise, seeded
from run.protections.models import Net
from run.protections.rows import Row, nothing
from torch import nn


def one_tensor() -> dict[str, Any]:
    return {"x": noise(3, 8)}


@dataclass(frozen=True)
class Scenario:
    """A model, a plan, and what must come of it.

    Args:
        code: the model's forward; its name is the scenario's.
        layers: the model's layers.
        order: the plan's order.
        rows: what it shows.
        launched: the layers of a step in the order in which they launch.
        devices: of those that are not on the first one.
        forced: what launches before its turn, by name.
        backward: the layers in the order of their gradients, if it must be this one.
        inputs: the model's inputs; made inside the emulation.
        launchers: in which thread what waits launches.
        training: with gradients, and a backward.
        captured_for_training: whether it was when it was captured.
        setup: done with a new model.
        after: what the caller does right after a call of the model.
        error: how a step must fail, if it must.
    """

    code: Callable[..., Any]
    layers: Mapping[str, Callable[[], nn.Module]]
    order: Sequence[str]
    rows: tuple[Row, ...]
    launched: str
    devices: Mapping[str, int | str] = field(default_factory=dict)
    forced: tuple[str, ...] = ()
    backward: str = ""
    inputs: Callable[[], dict[str, Any]] = one_tensor
    launchers: Collection[str] = ("host",)
    training: bool = True
    captured_for_training: bool = True
    setup: Callable[[Any], None] = nothing
    after: Callable[[Any, dict[str, Any]], None] = nothing
    error: str = ""

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.code.__name__

    def build(self) -> Net:
        """A new model."""
        model: Net = seeded(lambda: Net(self.code, self.layers))()  # type: ignore[assignment]
        self.setup(model)
        return model


SCENARIOS: list[Scenario] = []


def scenario(*rows: Row, **rest: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a scenario of a function: the forward of a `Net`."""

    def add(code: Callable[..., Any]) -> Callable[..., Any]:
        SCENARIOS.append(Scenario(code, rows=rows, **rest))
        return code

    return add
