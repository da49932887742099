"""What users may say of how a layer is split."""

import logging

import pytest
import torch

from baechi import BatchSpec
from baechi.split.spec import LayerSpec, Sharding, sharding_of

SIZES = {"out": 10, "in": 7}
SAID: list[tuple[LayerSpec, Sharding]] = [
    (3, Sharding("out", (4, 3, 3))),
    ({"in": 7}, Sharding("in", (1,) * 7)),
    (BatchSpec({"out": 4}), Sharding("out", (4, 4, 2))),
    (BatchSpec({"out": 3}, [0, 1]), Sharding("out", (3, 3, 3, 1), (0, 1, 0, 1))),
    (BatchSpec({"in": 4}, [["a"], ["b"]], base_device="a"), Sharding("in", (4, 3), ("a", "b"), "a")),
    ([BatchSpec({"out": 5}, ["a", "b"]), BatchSpec({"out": 3})],
     Sharding("out", (3, 2, 3, 2), ("a", "a", "b", "b"))),
    ([BatchSpec({"out": 6}), BatchSpec({"out": 3}, [2, 0])], Sharding("out", (3, 3, 3, 1), (2, 0, 2, 0))),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "sharding"), SAID)
def test_specs(spec: LayerSpec, sharding: Sharding) -> None:
    """Numbers divide evenly, sizes leave a short last shard, devices repeat, inner shards stay there."""
    assert sharding_of(spec, SIZES, "head") == sharding


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"width": 2}, "no dimension 'width' to split along: it has out, in"),
        ({"out": 2, "in": 2}, "name one dimension"),
        (0, "at least 1"),
        (True, "at least 1"),
        (11, "10 long along 'out': it cannot be split into 11"),
        ([], "not empty"),
        ([3], "one of BatchSpec"),
        ("auto", "number of shards of head is 'auto': it has to be a whole number"),
    ],
)
def test_faults(spec: LayerSpec, fault: str) -> None:
    """What cannot be says why."""
    with pytest.raises(ValueError, match=fault):
        sharding_of(spec, SIZES, "head")


def test_a_spec_is_frozen() -> None:
    """Use changes no spec, and one spec serves several layers."""
    matrix = [0, 1]
    spec = BatchSpec({"out": 5}, device_matrix=matrix)
    first = sharding_of(spec, SIZES, "head")
    matrix.append(2)
    with pytest.raises(TypeError):
        spec.batch_sizes["out"] = 1  # type: ignore[index]
    assert sharding_of(spec, SIZES, "tail") == first


def test_idle_devices_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """More devices than shards: the log says which do nothing."""
    with caplog.at_level(logging.WARNING):
        sharding_of(BatchSpec({"out": 5}, torch.arange(4)), SIZES, "head")
    assert "leave devices idle: 2, 3" in caplog.text
