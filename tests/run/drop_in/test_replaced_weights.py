"""Weights and modules that are replaced after the model was distributed: right, or the cure is said."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi

X = torch.linspace(-1, 1, 32).reshape(8, 4).double()
WHERE = {"0": 0, "1": 1, "2": 0}


class LoRA(nn.Module):
    """A layer with an adapter, by hand."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.merged = base, False
        self.down = nn.Parameter(torch.ones(2, 4).double() / 3)
        self.up = nn.Parameter(torch.ones(4, 2).double() / 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y if self.merged else y + (x @ self.down.T) @ self.up.T


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[LoRA(nn.Linear(4, 4).double()) for _ in range(3)])


def merge(model: Any) -> None:
    for layer in model:
        layer.base.weight.data += layer.up @ layer.down
        layer.merged = True


def unload(model: Any) -> None:
    merge(model)
    for number, layer in enumerate(model):
        model[number] = layer.base


def anew(model: Any) -> None:
    model[1].base.weight = nn.Parameter(torch.ones(4, 4).double())


def data(model: Any) -> None:
    model[1].down.data = torch.ones(2, 4).double()


def added(model: Any) -> None:
    model.append(nn.Linear(4, 4).double().requires_grad_(False))
    nn.init.eye_(model[3].weight)
    nn.init.ones_(model[3].bias)


def loaded(model: Any) -> None:
    state = {key: torch.ones_like(value, device="cpu") / 7 for key, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def cast(model: Any) -> None:
    model.half()
    model.to(torch.float64)


CASES: list[tuple[Callable[[Any], None], bool, bool]] = [
    (merge, True, True),
    (unload, True, True),
    (anew, False, False),
    (data, False, False),
    (added, True, False),
    (loaded, True, True),
    (cast, True, True),
]


@pytest.mark.default_cases(2)
@pytest.mark.parametrize(("change", "right", "right_on_one"), CASES)
@pytest.mark.parametrize("way", ["whole", "one device", "pipelined"])
def test_right_or_the_cure(change: Callable[[Any], None], right: bool, right_on_one: bool, way: str) -> None:
    """The error names the weight, where it lies, and `baechi.restore`."""
    cluster = baechi.Cluster.virtual(2)
    model, plain = chain(), chain()
    microbatches = 2 if way == "pipelined" else None
    where = {"": 0} if way == "one device" else WHERE
    baechi.distribute(model, X, cluster=cluster, device_map=where, microbatches=microbatches)
    with cluster:
        model(X).sum().backward()
        change(model)
        change(plain)
        if right_on_one if way == "one device" else right:
            torch.testing.assert_close(model(X).cpu(), plain(X))
            return
        with pytest.raises(RuntimeError if way == "one device" else baechi.BaechiError) as raised:
            model(X)
    said = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "lies on the host, not on cpu:" in said and "baechi.restore(model)" in said


def test_merging_over_devices_says_the_cure() -> None:
    """Between calls nothing is moved: an adapter on another device is merged after `restore`."""
    cluster = baechi.Cluster.virtual(2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    baechi.distribute(model, X, cluster=cluster, device_map={"0": 0, "1": 1})
    with cluster:
        model(X)
        with pytest.raises(RuntimeError, match=r"nothing is moved.*baechi\.restore\(model\)"):
            model[0].weight.data += model[1].weight.data
