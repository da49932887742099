"""Copies of fake tensors: torch's own read memory that these do not have, and the process died."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.torchlib.fakes.at_work import fakes_at_work
from baechi.torchlib.private.fakes import FakeTensorMode


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [nn.Parameter, lambda tensor: tensor])
def test_copies(copied: object, kind: object) -> None:
    """They compute, keep what kind they are, and a shallow one lies in the same memory."""
    with fakes_at_work(), FakeTensorMode():
        fake = kind(torch.ones(2, 3))  # type: ignore[operator]
        made = copied(fake)  # type: ignore[operator]
        assert type(made) is type(fake) and made.requires_grad == fake.requires_grad
        assert (made.clone() + 1).shape == (2, 3)
        same = made.untyped_storage()._cdata == fake.untyped_storage()._cdata
        assert same == (copied is copy.copy)


def test_pickling_is_refused() -> None:
    with fakes_at_work(), FakeTensorMode(), pytest.raises(TypeError, match="no values"):
        pickle.dumps(torch.ones(2))


class Copies(nn.Module):
    """Copies a value and a weight, and goes on with them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        before = self.a(x)
        after: Tensor = self.b(copy.copy(before).clone()) + before
        return after.sum() + copy.copy(self.b.weight).sum()


def test_a_model_that_copies_tensors() -> None:
    """As on one device: a copy has no history."""
    torch.manual_seed(0)
    model, x = Copies(), torch.randn(3, 4)
    plain = copy.deepcopy(model)
    expected = plain(x)
    expected.backward()
    with baechi.Cluster.virtual(2) as cluster:
        baechi.distribute(model, x, cluster=cluster, device_map={"a": 0, "b": 1})
        loss = model(x)
        loss.backward()
    assert torch.equal(loss, expected)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)
