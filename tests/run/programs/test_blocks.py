"""Equal blocks are compiled once, wherever they lie; others are not taken for one."""

import copy

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn

import baechi
from baechi.run.programs import blocks


class Block(nn.Module):
    """Residual, with a scale that some have and others have not."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), nn.Linear(8, 8)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(self.norm(x)).tanh()
        return x + made * self.scale


class Rows(nn.Module):
    """Six blocks in a row, of which the fifth computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.blocks = nn.ModuleList([Block(0.25 if number == 4 else 0.5) for number in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        made: Tensor = self.head(x)
        return made.square().mean()


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 2])
def test_compiled_once(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with weights of its own; wherever they lie, in each direction at least three need no program."""
    made: list[int] = []
    compiled = blocks._compiled

    def counted(*args: object) -> object:
        made.append(args[-1] not in blocks._known)  # type: ignore[arg-type]
        return compiled(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(blocks, "_compiled", counted)
    model, x = seeded(Rows).double(), noise(8, 8)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    where = {"first": 0, "head": devices - 1}
    where |= {f"blocks.{number}": (number // 3) * (devices - 1) for number in range(6)}
    baechi.distribute(model, x, cluster=cluster, device_map=where, microbatches=2, compile=baechi.Stages())
    for one in (model, plain):
        one(x).backward()
    assert_same_gradients(model, plain, 1e-11)
    assert torch.allclose(model(x), plain(x), rtol=1e-12)
    assert len(made) - sum(made) >= 6, made


def test_strides_are_looked_at_as_long_as_they_may_differ() -> None:
    """What a program made with the right strides at the first call is not looked at again."""
    graph, seen = torch.fx.Graph(), list[list[tuple[int, ...]]]()
    reads = [graph.placeholder(f"read_{number}") for number in range(4)]
    for node in reads:
        node.meta["val"] = torch.empty(2, 3, device="meta")

    def run(values: list[Tensor]) -> list[Tensor]:
        seen.append([value.stride() for value in values])
        return values

    laid = blocks._laid(run, reads, ["never", "once", "once", "always"])
    rows, columns = torch.ones(2, 3), torch.ones(3, 2).T
    assert torch.equal(laid([columns, rows, columns, rows])[2], columns)
    assert seen == [[(1, 2), (3, 1), (3, 1), (3, 1)]]
    laid([columns, columns, columns, columns])
    assert seen[1] == [(1, 2), (1, 2), (3, 1), (3, 1)]
