"""Hard little models, whose forward is a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from architectures.base import noise, seeded
from run.launch.reordering.models import Shift, linear
from torch import nn


class Net(nn.Module):
    """Layers by name around a function that is its forward; `notes` is what that function saw."""

    def __init__(self, code: Callable[..., Any], layers: dict[str, Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.code = code
        self.notes: list[Any] = []
        for name, layer in layers.items():
            setattr(self, name, layer())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.notes = []
        return self.code(self, *args, **kwargs)


def one_tensor() -> dict[str, Any]:
    return {"x": noise(3, 8)}


@dataclass(frozen=True)
class Case:
    """A model, its inputs, by how much its gradients may be off, and whether something in it waits."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    tolerance: float
    waits: bool


CASES: list[Case] = []


def case(
    *,
    inputs: Callable[[], dict[str, Any]] = one_tensor,
    tolerance: float = 0.0,
    waits: bool = True,
    **layers: Callable[[], nn.Module],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a case of a function: the forward of a `Net` with these layers."""

    def add(code: Callable[..., Any]) -> Callable[..., Any]:
        build = seeded(lambda: Net(code, layers))
        CASES.append(Case(code.__name__, build, inputs, tolerance, waits))
        return code

    return add


SHIFTS: dict[str, Callable[[], nn.Module]] = dict.fromkeys("abcde", Shift)
LINEARS: dict[str, Callable[[], nn.Module]] = dict.fromkeys("abcde", linear)
