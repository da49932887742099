"""Tensors are found and replaced inside whatever models pass around."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from baechi.torchlib.tensors.pytree import map_tensors, named_tensors, tensors_in

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Frozen:
    value: torch.Tensor
    label: str


X = torch.ones(2)
VALUES: dict[str, Any] = {
    "tensor": X,
    "list": [X, 1, "a", None],
    "tuple": (X, (X, [X])),
    "named tuple": Pair(X, 2),
    "dict": {"a": X, "b": {"c": X}},
    "ordered dict": OrderedDict(a=X),
    "user dict": UserDict(a=X),
    "frozen dataclass": Frozen(X, "y"),
}


@pytest.mark.parametrize("name", VALUES)
def test_unchanged_is_the_same_object(name: str) -> None:
    """Where no tensor changes, the very same object comes back."""
    assert map_tensors(lambda t: t, VALUES[name]) is VALUES[name]


@pytest.mark.parametrize("name", VALUES)
def test_changed_keeps_type_and_original(name: str) -> None:
    """Where tensors change, a copy of the same type has them, and the original keeps its own."""
    value = VALUES[name]
    changed = map_tensors(lambda t: t + 1, value)
    assert type(changed) is type(value)
    assert all(torch.equal(t, X + 1) for t in tensors_in(changed)) and list(tensors_in(changed))
    assert all(t is X for t in tensors_in(value))


def test_opaque_objects_are_handed_on() -> None:
    """Objects that nobody knows how to take apart are left alone."""
    cache = type("Cache", (), {"keys": X})()
    assert map_tensors(lambda t: t + 1, [cache])[0] is cache


def test_packed_sequences_keep_their_lengths() -> None:
    """The batch sizes of a packed sequence stay the host's."""
    packed = pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([3, 2]))
    changed = map_tensors(lambda t: t + 1, packed)
    assert isinstance(changed, PackedSequence)
    assert changed.batch_sizes is packed.batch_sizes and torch.equal(changed.data, packed.data + 1)


def test_paths() -> None:
    """Each tensor is named by the way that leads to it."""
    assert [name for name, _ in named_tensors("x", {"a": [X, X], "b": X})] == ["x.a.0", "x.a.1", "x.b"]
