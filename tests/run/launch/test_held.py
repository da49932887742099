"""What a layer holds, noted: kept while it holds the same, made anew after a change; no weight is kept."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from baechi.run.reorder.outcome import Outcomes


class Settings:
    """A configuration object."""

    def __init__(self) -> None:
        self.scales = [1.0, 2.0]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.settings = Settings()
        self.table = {"a": torch.ones(2), "b": None}
        self.scale = 2
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


def hook(*_: object) -> None:
    pass


CHANGES: dict[str, Callable[[Layer], object]] = {
    "a number of another type": lambda layer: setattr(layer, "scale", 2.0),
    "a weight": lambda layer: setattr(layer.inner, "weight", nn.Parameter(torch.ones(2, 2))),
    "no weight": lambda layer: setattr(layer.inner, "bias", None),
    "a buffer": lambda layer: setattr(layer, "seen", torch.zeros(1)),
    "a submodule": lambda layer: setattr(layer, "inner", nn.Linear(2, 2)),
    "another class": lambda layer: setattr(layer.inner, "__class__", nn.Identity),
    "a hook": lambda layer: layer.inner.register_forward_hook(hook),
    "a tensor in a dict": lambda layer: layer.table.update(a=torch.ones(2)),
    "a key": lambda layer: layer.table.update(c=None),
    "no key": lambda layer: layer.table.pop("b"),
    "the order of keys": lambda layer: layer.table.update(a=layer.table.pop("a")),
    "a number in a list of an object": lambda layer: layer.settings.scales.append(3.0),
    "a weight's shape": lambda layer: setattr(layer.inner.weight, "data", torch.ones(4, 2)),
    "a frozen weight": lambda layer: layer.inner.weight.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change: str) -> None:
    """A note is kept while nothing changes, and made anew after a change."""
    outcomes, layer = Outcomes(1), Layer()
    noted = outcomes.held(layer)
    assert not noted.why_not and noted.is_as_noted() and outcomes.held(layer) is noted
    CHANGES[change](layer)
    assert not noted.is_as_noted()
    assert outcomes.held(layer) is not noted and outcomes.held(layer).is_as_noted()


def test_a_dropped_bias_is_seen_also_when_none_holds_it() -> None:
    """The note refers to a bias weakly: one that is no more is not taken for a bias that never was."""
    outcomes, layer = Outcomes(1), nn.Linear(2, 2)
    noted = outcomes.held(layer)
    layer.bias = None
    gc.collect()
    assert not noted.is_as_noted()


def test_equal_layers_share_a_key() -> None:
    """What one layer returns is inferred for all layers that look the same, and for no other."""
    outcomes, layers = Outcomes(1), [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2, bias=False)]
    one, same, other = (outcomes.held(layer).key for layer in layers)
    assert one is same and one is not other


def test_no_note_keeps_a_weight() -> None:
    """A weight that the model drops is freed, though its layer is noted."""
    outcomes, layer = Outcomes(1), Layer()
    outcomes.held(layer)
    dropped = [weakref.ref(tensor) for tensor in (layer.inner.weight, layer.seen, layer.table["a"])]
    layer.inner.weight, layer.seen, layer.table["a"] = nn.Parameter(torch.ones(2, 2)), torch.ones(1), None
    assert all(refers() is None for refers in dropped)
