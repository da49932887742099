"""What a step takes of each rank's host, beside its share of the tasks in one process, in one run.

    one process   [ binding ][ tasks of all devices ][ handing over ]
    rank 1        [ binding ][ own tasks, transfers ][ handing over ]      and gloo's threads

Processor time, the least of several steps. A share is what the tasks of a device take of those of all, in one
process. Layers lie in order, equally many on each device.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table
from torch import nn

import baechi
from baechi.records.pipeline import Pipeline
from baechi.run.programs.loop import Loop, Values
from baechi.run.programs.program import Program
from benches.figures import Figures, table_of

MICROBATCHES = 8
_ROWS, _WARM_UP = 16, 5


@dataclass(frozen=True)
class OfRank:
    """What a step takes of a rank.

    Args:
        model: which model.
        ranks: how many there are.
        rank: which one.
        share: what its tasks take of all, in one process.
        alone_s: processor seconds of one process, for all.
        own_s: processor seconds of the thread that runs the step.
        process_s: the same, with other threads: gloo's.
    """

    model: str
    ranks: int
    rank: int
    share: float
    alone_s: float
    own_s: float
    process_s: float

    @property
    def over_share(self) -> float:
        """By how many times its thread takes more than its share."""
        return self.own_s / (self.share * self.alone_s)


class Chain(nn.Module):
    """Thirteen layers, eight wide."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(13)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self.layers(x).square().mean()
        return loss


class WithLoss(nn.Module):
    """A model of transformers, of which the loss is taken.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self.model(**inputs).loss
        return loss


def _chain() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Chain(), {"x": torch.randn(_ROWS, 8)}


def _gpt2(width: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers

    sizes = {"n_embd": width, "n_layer": 12, "n_head": 4, "n_positions": 32, "vocab_size": 101}
    config = transformers.GPT2Config(**sizes, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    ids = torch.randint(101, (_ROWS, 16))
    return WithLoss(transformers.GPT2LMHeadModel(config)), {"input_ids": ids, "labels": ids}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "chain, 13 layers 8 wide": _chain,
    "GPT-2, 12 layers 64 wide": lambda: _gpt2(64),
    "GPT-2, 12 layers 256 wide": lambda: _gpt2(256),
}


def measure(*, quick: bool = False) -> Figures:
    """Measure, and show.

    Args:
        quick: one model over two ranks, a few steps.
    """
    found = []
    for name in list(MODELS)[: 1 if quick else None]:
        for ranks in (2,) if quick else (2, 4):
            found += of_ranks(name, ranks, steps=3 if quick else 30)
    return Figures((table(found),), [asdict(one) for one in found])


def of_ranks(name: str, size: int, *, steps: int) -> list[OfRank]:
    """Measure one model over some ranks.

    Args:
        name: a key of `MODELS`.
        size: how many ranks.
        steps: of how many steps the least counts.
    """
    from run.ranks.processes import ranks

    text = in_order(name, size)
    alone_s, _, by_place = least(name, text, steps, by_place=True)
    with ranks(size) as processes:
        answers = processes(least, name, text, steps)
    found = []
    for rank, (answer, own_s) in enumerate(zip(answers, by_place.values(), strict=True)):
        if isinstance(answer, Exception):
            raise answer
        share = own_s / sum(by_place.values())
        found.append(OfRank(name, size, rank, share, alone_s, answer[1], answer[0]))
    return found


def in_order(name: str, devices: int) -> str:
    """A pipeline whose layers lie in order; what shares a weight lies together.

    Args:
        name: a key of `MODELS`.
        devices: how many.
    """
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    cluster = baechi.Cluster.virtual(devices, memory="4GiB")
    graph = baechi.profile(model, batch, cluster=cluster, source="estimate", microbatches=MICROBATCHES)
    names = list(graph.placed())
    device_of = {one: cluster.names[devices * number // len(names)] for number, one in enumerate(names)}
    tied = [one for one in names if any(part in one for part in ("lm_head", "wte", "cross_entropy"))]
    device_of |= {one: device_of[tied[0]] for one in tied}
    return baechi.pipeline(
        baechi.Plan(graph, cluster, device_of, tuple(names)), MICROBATCHES, "1f1b"
    ).to_json()


def least(
    name: str, text: str, steps: int, *, by_place: bool = False
) -> tuple[float, float, dict[str, float]]:
    """The least processor seconds of a step here: of the process, of its thread, and of tasks by device.

    Args:
        name: a key of `MODELS`.
        text: the pipeline.
        steps: how many steps.
        by_place: whether tasks are measured, too, in further steps.
    """
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    baechi.distribute(
        model,
        batch,
        plan=Pipeline.from_json(text),
        loss_weights="rows",
        compile=baechi.Stages(backend="aot_eager"),
    )
    taken = []
    for _ in range(_WARM_UP + steps):
        model.zero_grad()
        begun = time.process_time(), time.thread_time()
        model(**batch).backward()
        taken.append((time.process_time() - begun[0], time.thread_time() - begun[1]))
    own: dict[str, float] = {}
    for _ in range(steps if by_place else 0):
        with _tasks_timed() as each:
            model(**batch).backward()
        own = {place: min(own.get(place, seconds), seconds) for place, seconds in each.items()}
    process_s, thread_s = (min(seconds[_WARM_UP:]) for seconds in zip(*taken, strict=True))
    return process_s, thread_s, own


@contextmanager
def _tasks_timed() -> Iterator[dict[str, float]]:
    """Within this context the seconds of tasks are added up by device."""
    found: dict[str, float] = {}
    before = Loop._task

    def timed(loop: Loop, microbatch: int, values: Values, program: Program) -> None:
        begun_s = time.thread_time()
        before(loop, microbatch, values, program)
        found[program.place] = found.get(program.place, 0.0) + time.thread_time() - begun_s

    Loop._task = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Loop._task = before  # type: ignore[method-assign]


def table(found: list[OfRank]) -> Table:
    """The figures as a table.

    Args:
        found: what was measured.
    """
    numbers = (
        "ranks",
        "rank",
        "one process, ms",
        "its share",
        "its thread, ms",
        "times its share",
        "with gloo, ms",
    )
    shown = table_of(f"A step in {MICROBATCHES} microbatches, by rank", ("model",), numbers)
    for one in found:
        figures: list[Any] = [one.ranks, one.rank, f"{1e3 * one.alone_s:.1f}", f"{one.share:.2f}"]
        figures += [f"{1e3 * one.own_s:.1f}", f"{one.over_share:.2f}", f"{1e3 * one.process_s:.1f}"]
        shown.add_row(one.model, *map(str, figures))
    return shown
