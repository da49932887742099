"""The main job, shown: a model with two towers, trained over two devices neither of which could hold it.

Real text that every Python carries (`pydoc_data.topics`, its language reference) is cut into passages.
One tower reads passages, the other one the passages that follow, and the model learns which belong
together. The same steps run twice on emulated devices: on one that is large, and distributed over two
small ones. Losses, steps and memory are compared.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from baechi import report
from baechi.errors import PlacementError
from baechi.records import files
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run import last_step, plan_of
from baechi.units import format_bytes, format_seconds
from baechi.verbs.distribute import distribute
from baechi.verbs.plans import place

STEPS = 9
BATCHES = 3  # seen again and again, so that few steps learn something
BATCH = 16
PASSAGE = 64  # characters
VOCAB = 128  # ASCII
WIDTH = 128
KIND, MEMORY = "L4", "128MiB"
RATE = 2e-3
TOLERANCE = 1e-9  # sums of three or more gradients may be taken in another order


class Tower(nn.Module):
    """A text encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Parameter(torch.randn(PASSAGE, WIDTH) / WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)

    def forward(self, passages: Tensor) -> Tensor:
        """Encode (batch, characters) as (batch, width)."""
        encoded: Tensor = self.encoder(self.embed(passages) + self.position)
        return encoded.mean(1)


class Matcher(nn.Module):
    """Two towers, and the loss of matching each passage with its next one among those of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.passage, self.next = Tower(), Tower()

    def forward(self, passages: Tensor, following: Tensor) -> Tensor:
        """The loss of a batch: (batch, characters) of each."""
        scores = self.passage(passages) @ self.next(following).T / WIDTH**0.5
        return F.cross_entropy(scores, torch.arange(len(scores)))


class _Trained(NamedTuple):
    """What came of training: the cluster, the plan, the last step as it was measured, the losses."""

    cluster: Cluster
    plan: Plan
    step: Timeline
    losses: list[float]


def run(console: Console) -> bool:
    """Run the demo."""
    count = sum([weight.numel() for weight in Matcher().parameters()])
    console.rule("baechi demo: two towers, trained on one device and over two")
    _say(
        console,
        "The model reads passages of Python's language reference, and learns which one follows which: "
        f"{count / 1e6:.1f} million parameters, in double precision. "
        f"The devices are emulated ({KIND}), so no GPU is needed: this CPU computes what they would.",
    )
    single = _trained(console, "one device", Cluster.virtual(1, like=KIND))
    double = _trained(console, "two devices", Cluster.virtual(2, memory=MEMORY, like=KIND))
    _say(console, f"\n{double.plan!r}")
    same = _show_losses(console, single, double)
    gain = single.step.makespan_s / double.step.makespan_s
    _say(
        console,
        f"A step takes {format_seconds(double.step.makespan_s)} on two devices and "
        f"{format_seconds(single.step.makespan_s)} on one: {gain:.2f} times as fast, by the clocks of the "
        "emulated devices.",
    )
    page = Path(tempfile.mkdtemp(prefix="baechi-demo-")) / "report.html"
    files.write(page, report.to_html(double.plan))
    _say(console, f"The report, with the plan and the step as pictures: {page}")
    _show_need(console, double)
    _say(
        console,
        "\nWith your model, on your GPUs:\n\n"
        "    import baechi\n"
        "    model = baechi.distribute(model, batch, optimizer=optimizer)\n\n"
        "and your training loop stays as it is. docs/tutorial.md tells more.",
    )
    return same


def _trained(console: Console, name: str, cluster: Cluster) -> _Trained:
    torch.manual_seed(0)
    model = Matcher().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    batches = _batches()
    with _timed(console, f"{name}: profiled, placed and checked by a dry run"):
        # what the search of the default effort=1 would find is no better here, and it would be compiled first
        distribute(model, batches[0], cluster=cluster, optimizer=optimizer, effort=0, verbose=False)
    torch.manual_seed(1)  # the same dropout in both runs
    losses = []
    with _timed(console, f"{name}: {STEPS} steps of training"), cluster:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(*batches[step % BATCHES])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    plan = plan_of(model)
    assert isinstance(plan, Plan)
    return _Trained(cluster, plan, last_step(model), losses)


def _batches() -> list[tuple[Tensor, Tensor]]:
    text = " ".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = BATCHES * BATCH + 1
    passages = codes[: count * PASSAGE].view(count, PASSAGE)
    return list(zip(passages[:-1].split(BATCH), passages[1:].split(BATCH), strict=True))


def _show_losses(console: Console, single: _Trained, double: _Trained) -> bool:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("step", "loss on one device", "on two devices", "difference"):
        table.add_column(column, justify="right")
    pairs = list(zip(single.losses, double.losses, strict=True))
    differences = [abs(a - b) for a, b in pairs]
    for step in range(0, STEPS, BATCHES):  # the first batch
        a, b = pairs[step]
        table.add_row(str(step + 1), f"{a:.12f}", f"{b:.12f}", f"{differences[step]:.1e}")
    console.print(table)
    same = max(differences) <= TOLERANCE
    verdict = "The same losses" if same else "DIFFERENT losses"
    _say(console, f"{verdict} in {STEPS} steps: the largest difference is {max(differences):.1e}.")
    return same


def _show_need(console: Console, double: _Trained) -> None:
    """What no single device of the two could do."""
    graph: LayerGraph = double.plan.graph
    peaks = [double.step.peak_bytes[device.name] for device in double.cluster.devices]
    held = " and ".join([format_bytes(peak) for peak in peaks])
    memory = format_bytes(double.cluster.devices[0].memory_bytes)
    try:
        place(graph, double.cluster, "single", optimizer="adam")
    except PlacementError as error:
        short = format_bytes(min(error.short_bytes.values()))
        _say(
            console,
            f"What no single one of them could do: each has {memory}, and training on one alone is {short} "
            f"short. Over both, they held {held} at most.",
        )


@contextmanager
def _timed(console: Console, what: str) -> Iterator[None]:
    begun_s = time.monotonic()
    yield
    _say(console, f"  {what} ({format_seconds(time.monotonic() - begun_s)})")


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False)
