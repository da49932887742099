"""The main job, shown: an encoder-decoder trained over devices none of which could hold it.

Real text that every Python carries (`pydoc_data.topics`, its language reference) is cut into
passages: given one passage, the model learns to spell the next. The same steps run twice on emulated
devices, on one that is large and distributed over small ones; losses, times and memory are compared.
"""

from pydoc_data.topics import topics
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from baechi import report, zoo
from baechi.errors import PlacementError
from baechi.records.cluster import Cluster
from baechi.records.timeline import Timeline
from baechi.run import last_step, plan_of
from baechi.units import format_bytes, format_seconds
from baechi.verbs.distribute import distribute
from baechi.verbs.planning import place
from baechi.verbs.profiling import profile

STEPS = 30
PASSAGE = 64  # characters
BATCH = 16
VOCAB = 128  # ASCII; 0 is padding
MEMORY = "64MiB"
RATE = 3e-3
TOLERANCE = 1e-9  # sums of three or more gradients may be taken in another order


class Batch(NamedTuple):
    """Passages as character codes, (batch, characters) each.

    Args:
        source: the passages.
        given: the next ones, but for their last character.
        wanted: the next ones, but for their first.
    """

    source: torch.Tensor
    given: torch.Tensor
    wanted: torch.Tensor


def run(console: Console) -> bool:
    """Run the demo.

    Args:
        console: where to print.

    Returns:
        Whether both runs had the same losses.
    """
    cluster = Cluster.virtual(4, memory=MEMORY)
    batches = _batches()
    _show_need(console, cluster, batches[0])
    losses, steps = [], []
    for name, devices in (("one device", Cluster.virtual(1)), ("four devices", cluster)):
        model = _model()
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        distribute(model, batches[0][:2], cluster=devices, optimizer=optimizer)
        if devices is cluster:
            console.print(report.render(plan_of(model)))
        with devices:
            losses.append(_train(console, name, model, optimizer, batches))
            steps.append((name, devices, last_step(model)))
    _show_steps(console, steps)
    return _compare(console, *losses)


def _model() -> nn.Module:
    """The small Transformer, large enough to learn spelling in 30 steps; in double precision, where
    sums of gradients taken in another order still agree in every digit shown."""
    model, _ = zoo.transformer(
        "small", vocab=VOCAB, features=128, inner=512, heads=8, layers=3, max_length=PASSAGE
    )
    return model.double()


def _batches() -> list[Batch]:
    text = " ".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = STEPS * BATCH + 1
    passages = codes[: count * PASSAGE].view(count, PASSAGE)
    sources, targets = passages[:-1].split(BATCH), passages[1:].split(BATCH)
    pairs = zip(sources, targets, strict=True)
    return [Batch(source, target[:, :-1], target[:, 1:]) for source, target in pairs]


def _show_need(console: Console, cluster: Cluster, batch: Batch) -> None:
    graph = profile(_model(), (batch.source, batch.given), cluster=cluster)
    console.rule("baechi demo: a Transformer over four emulated devices")
    try:
        place(graph, cluster, "single", optimizer="adam")
    except PlacementError as error:
        console.print(f"On one device: {error}\n", highlight=False, markup=False)


def _train(
    console: Console,
    name: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[Batch],
) -> list[float]:
    torch.manual_seed(0)  # the same dropout in both runs
    losses: list[float] = []
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=len(batches), loss="")
        for batch in batches:
            losses.append(_step(model, optimizer, batch))
            progress.update(task, advance=1, loss=f"loss {losses[-1]:.4f}")
    return losses


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    optimizer.zero_grad()
    logits = model(batch.source, batch.given)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.wanted.flatten())
    loss.backward()
    optimizer.step()
    return loss.item()


def _show_steps(console: Console, steps: list[tuple[str, Cluster, Timeline]]) -> None:
    table = _table("A step as the emulated clusters measured it", "", "device", "peak", "of", "step")
    for name, cluster, timeline in steps:
        for number, device in enumerate(cluster.devices):
            first = (name, format_seconds(timeline.makespan_s)) if number == 0 else ("", "")
            peak, memory = timeline.peak_bytes[device.name], device.memory_bytes
            table.add_row(first[0], device.name, format_bytes(peak), format_bytes(memory), first[1])
    console.print(table)


def _compare(console: Console, single: list[float], spread: list[float]) -> bool:
    table = _table("Loss per step", "step", "one device", "four devices", "difference")
    differences = [abs(a - b) for a, b in zip(single, spread, strict=True)]
    for step in sorted({*range(0, len(single), 5), len(single) - 1}):
        a, b, difference = single[step], spread[step], differences[step]
        table.add_row(str(step + 1), f"{a:.10f}", f"{b:.10f}", f"{difference:.1e}")
    console.print(table)
    same = max(differences) <= TOLERANCE
    verdict = "the same losses" if same else "DIFFERENT losses"
    console.print(
        f"One device and four: {verdict} (largest difference {max(differences):.1e}).", highlight=False
    )
    return same


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    return table
