"""What a step takes of this machine's host: a plain loop over microbatches, and how baechi runs it."""

import time
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import nn

from baechi.backend import unwatched
from baechi.records.cluster import Cluster
from baechi.records.stages import Stages
from baechi.report.tables import Table
from baechi.verbs.distribute import distribute

_FEATURES, _ROWS, _MICROBATCHES, _DEVICES = 16, 8, 4, 2


class _Block(nn.Module):
    """Attention and a product of two layers, both beside a residual, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(_FEATURES) for _ in range(2)])
        self.asked, self.joined = nn.Linear(_FEATURES, 3 * _FEATURES), nn.Linear(_FEATURES, _FEATURES)
        self.wide, self.narrow = nn.Linear(_FEATURES, 4 * _FEATURES), nn.Linear(4 * _FEATURES, _FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        asked, keys, values = self.asked(self.norms[0](x)).chunk(3, -1)
        x = x + self.joined((asked @ keys.transpose(-1, -2)).softmax(-1) @ values)
        made: torch.Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))
        return made


class _Blocks(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block() for _ in range(blocks)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def host_steps(*, quick: bool = False) -> tuple[Table, dict[str, float]]:
    """Measure steps of a small transformer in microbatches on emulated devices, of which nothing is emulated.

    Args:
        quick: a smaller model, fewer rounds, and no backend that compiles kernels.

    Returns:
        A table, and by way the seconds of processor time of a step, the least of several.
    """
    blocks, rounds = (2, 2) if quick else (8, 20)
    with unwatched():
        steps = _steps(blocks, (Stages(backend="aot_eager"), *([] if quick else [Stages()])))
        taken_s = dict.fromkeys(steps, float("inf"))
        for _ in range(rounds):
            for name, step in steps.items():
                begun_s = time.process_time()
                step()
                taken_s[name] = min(taken_s[name], time.process_time() - begun_s)
    loop_s = taken_s["plain loop"]
    rows = [(name, f"{s * 1e3:.2f}", f"{s / loop_s:.2f}") for name, s in taken_s.items()]
    title = (
        f"A step of {blocks} blocks in {_MICROBATCHES} microbatches on {_DEVICES} devices, host time; "
        "guards and handing over included"
    )
    columns = ("way", "milliseconds", "times the loop")
    return Table(title, columns, tuple(rows), columns[:1]), taken_s


def _steps(blocks: int, backends: tuple[Stages, ...]) -> dict[str, Callable[[], None]]:
    """By way, a step; each has run twice."""
    plain, x = _Blocks(blocks), torch.randn(_ROWS, 6, _FEATURES)

    def loop() -> None:
        plain.zero_grad()
        for part in x.chunk(_MICROBATCHES):
            (plain(part) / _MICROBATCHES).backward()

    found: dict[str, Callable[[], None]] = {"plain loop": loop}
    where = {f"blocks.{number}": number * _DEVICES // blocks for number in range(blocks)}
    for stages in (None, *backends):
        model = distribute(
            deepcopy(plain),
            x,
            cluster=Cluster.virtual(_DEVICES),
            device_map=where,
            microbatches=_MICROBATCHES,
            source="estimate",
            compile=stages,
        )

        def step(model: nn.Module = model) -> None:
            model.zero_grad()
            model(x).backward()

        found["code" if stages is None else f"programs, {stages.backend}"] = step
    for run in found.values():
        for _ in range(2):
            run()
    return found
