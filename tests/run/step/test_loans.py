"""What layers are given as copies, and what they write there."""

from dataclasses import dataclass
from typing import Any

import torch
from run.two import Two, same_on_two_devices
from torch import nn

import baechi


@dataclass
class State:
    """What layers hand on to each other."""

    h: torch.Tensor


class Appends(nn.Module):
    """A layer that hands its result on in a list, a dict and a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, box: dict[str, torch.Tensor], skips: list[torch.Tensor], state: State) -> Any:
        box["h"] = box["h"] @ self.weight
        skips.append(box["h"])
        state.h = state.h + box["h"]
        return box


def test_containers_changed_by_a_layer() -> None:
    """A layer that received copies got copies of the containers too, and what it put in was lost."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Appends(), Appends()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            box, skips, state = {"h": x}, [x], State(x)
            handed_on = self.b(self.a(box, skips, state), skips, state=state)
            assert handed_on is box and len(skips) == 3
            return box["h"] + sum(skips) + state.h

    same_on_two_devices(Model)


def test_copies_may_be_written_by_a_learned_layer() -> None:
    """`x += self.position` on a tensor that travelled raised: the copy was a view made without
    gradients, which autograd does not let anybody write."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += self.position
            return x

    same_on_two_devices(lambda: Two(lambda m, x: m.b(m.adds(x)) + m.a(x), adds=Adds()))


def test_a_buffer_first_seen_when_written() -> None:
    """A buffer that a layer gets as an argument and glue writes first had a holder and no owner."""
    model = Two(lambda m, x: m.b(m.a(x)) + m.count)
    model.register_buffer("count", torch.zeros(4))
    model.function = lambda m, x: (m.count.copy_(torch.ones(4)), m.b(m.a(x)) + m.count)[1]
    graph = baechi.profile(model, torch.ones(3, 4), cluster=baechi.Cluster.virtual(2))
    assert graph.total("buffer_bytes") == 16
    baechi.distribute(model, torch.ones(3, 4), cluster=baechi.Cluster.virtual(2), placer="random:0")
