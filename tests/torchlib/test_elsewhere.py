"""Tensors without values: the same objects for modules and optimizers, and no number ever comes out."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from baechi.errors import RankError
from baechi.torchlib.elsewhere import ElsewhereTensor, StandIns, leave_elsewhere
from baechi.torchlib.modules.inside import modules_in

CPU = torch.device("cpu")


def model() -> nn.Sequential:
    """Its second layer lies elsewhere, and so do statistics of its norm."""
    made = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    for name, tensor in [*made[2].named_parameters(), *made[1].named_buffers()]:
        leave_elsewhere(tensor, "rank1/cpu", name, CPU)
    return made


READS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda weight: weight.sum(),
    "item": lambda weight: weight.mean().item(),
    "index": lambda weight: weight[0],
    "beside a plain one": lambda weight: torch.zeros(4, 4) + weight,
    "into a plain one": lambda weight: torch.zeros(4, 4).copy_(weight),
    "list": lambda weight: weight.tolist(),
    "array": lambda weight: weight.detach().numpy(),
    "beside one of a third process": lambda weight: (
        weight + ElsewhereTensor(weight, "rank2/cpu", "grad", CPU)
    ),
    "a row": lambda weight: (weight * 2)[0],
    "written into": lambda weight: weight.detach().double().copy_(torch.ones(4, 4)).sum(),
    "pickle": pickle.dumps,
    "norm": lambda weight: torch.linalg.vector_norm(weight),
}


@pytest.mark.parametrize("how", READS)
def test_reading_raises(how: str) -> None:
    with pytest.raises(RankError, match="weight lies on rank1/cpu, so this process has no values of it"):
        READS[how](model()[2].weight)


def test_the_object_stays() -> None:
    made = nn.Linear(4, 3)
    weight = made.weight
    optimizer = torch.optim.SGD(made.parameters(), 0.1)
    leave_elsewhere(weight, "rank1/cpu", "weight", CPU)
    assert made.weight is weight is optimizer.param_groups[0]["params"][0]
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.dtype, weight.device, weight.is_leaf) == ((3, 4), torch.float32, CPU, True)
    assert repr(weight) == "<weight: float32 of shape (3, 4) on rank1/cpu>"


def test_what_works_in_place_does_nothing() -> None:
    made = model()
    weight = made[2].weight
    weight.grad = ElsewhereTensor(weight, "rank1/cpu", "the gradient of weight", CPU)
    nn.utils.clip_grad_value_(made.parameters(), 0.5)
    weight.grad.mul_(torch.tensor(2.0))
    made.zero_grad(set_to_none=False)
    assert isinstance(weight.grad, ElsewhereTensor)
    made.load_state_dict({key: torch.ones(one.shape) for key, one in made.state_dict().items()})
    assert isinstance(made[2].weight, ElsewhereTensor)
    assert bool((made[0].weight == 1).all())


def test_what_works_element_by_element_stays_elsewhere() -> None:
    """An average of weights, as users keep one; what an optimizer keeps beside a weight."""
    weight = model()[2].weight
    average = weight.detach().double()
    sums = 0.9 * average + 0.1 * weight, average.lerp(weight.double(), 0.1)
    for found in (*sums, torch.full_like(weight, 2)):
        assert isinstance(found, ElsewhereTensor)
        assert (found.shape, found.place) == (weight.shape, "rank1/cpu")
    assert [one.dtype for one in (average, *sums)] == [torch.float64] * 3
    assert (weight > 0).dtype is torch.bool


def test_a_scaler_is_refused() -> None:
    """Where one process finds an overflow, only that one would leave out its step."""
    made = model()
    optimizer, scaler = torch.optim.SGD(made.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(made[0](torch.ones(2, 4)).sum()).backward()
    weight = made[2].weight
    weight.grad = ElsewhereTensor(weight, "rank1/cpu", "the gradient of weight", CPU)
    with pytest.raises(RankError, match=r"GradScaler.*overflows of its own gradients only.*bfloat16"):
        scaler.step(optimizer)


def test_plain_tensors_stand_in() -> None:
    made = model()
    weight, stand_ins, seen = made[2].weight, StandIns(), []
    weight.requires_grad_(False)
    for _ in range(2):
        with stand_ins.standing(modules_in(made)):
            seen.append(made[2].weight)
            assert type(made[2].weight) is nn.Parameter
            assert not made[2].weight.requires_grad
            assert type(made[1].running_mean) is torch.Tensor
        assert made[2].weight is weight
    assert seen[0] is seen[1]
    assert stand_ins.weight(seen[0]) is weight
