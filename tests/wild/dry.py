"""Dry runs of other people's models beside the same steps with values."""

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from run.dry.steps import OPTIMIZERS, ran

import baechi
from wild.libraries import specimens
from wild.specimen import Specimen

WAYS = ("inference", "sgd", "adam")
KIND = "A100-80GB"


@dataclass(frozen=True)
class Compared:
    """A model, dry and with values.

    Args:
        name: the model.
        way: how it ran.
        outcome: `"same"`, `"off"`, `"refused"` (it needs values) or `"skipped"` (it does not run plainly).
        note: by how much, or why.
    """

    name: str
    way: str
    outcome: str
    note: str = ""


def compared(
    library: str, start: int, stride: int, devices: int, placer: str, limit_s: int
) -> Iterator[Compared]:
    """Run models of a library dry and with values.

    Args:
        library: the package.
        start: which model is the first.
        stride: how many models on the next one is.
        devices: how many devices to place on.
        placer: who places.
        limit_s: seconds that one way of one model may take.

    Yields:
        A row for each model and way.
    """
    signal.signal(signal.SIGALRM, _late)
    for specimen in list(specimens(library))[start::stride]:
        for way in WAYS:
            signal.alarm(limit_s)
            try:
                yield _compared(specimen, way, devices, placer)
            except TimeoutError:
                yield Compared(specimen.name, way, "skipped", f"takes more than {limit_s} s")
            finally:
                signal.alarm(0)


def summary(rows: list[Compared]) -> str:
    """How many there are of each outcome.

    Args:
        rows: what was compared.
    """
    return ", ".join(
        [f"{count} {outcome}" for outcome, count in sorted(Counter(r.outcome for r in rows).items())]
    )


def _compared(specimen: Specimen, way: str, devices: int, placer: str) -> Compared:
    training = way != "inference"
    cluster = baechi.Cluster.virtual(devices, memory="64GiB", like=KIND)
    try:
        model, batch = specimen.model().train(training), specimen.batch()
        graph = baechi.profile(model, batch, cluster=cluster, training=training, source="estimate")
        plan = baechi.place(graph, cluster, placer, effort=0)
        real = _seeded(lambda: ran(specimen.model(), batch, plan, way))
    except Exception as error:  # others' code: whatever it raises, there is nothing to compare with
        return Compared(specimen.name, way, "skipped", f"{type(error).__name__}: {error}"[:100])
    optimizer = OPTIMIZERS[way](model.parameters()) if training else None
    try:
        dry = _seeded(lambda: baechi.dry_run(model, batch, plan, optimizer=optimizer))
    except baechi.DryRunError as error:
        return Compared(specimen.name, way, "refused", str(error)[:160])
    peaks = [(dry.peak_bytes[name], real.peak_bytes[name]) for name in cluster.names]
    step_off = dry.makespan_s / real.makespan_s - 1
    if abs(step_off) < 1e-9 and all(said == held for said, held in peaks):
        return Compared(specimen.name, way, "same")
    return Compared(specimen.name, way, "off", f"step {step_off:+.3%}, peaks (dry, run) {peaks}")


def _seeded(run: Callable[[], Any]) -> Any:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    return run()


def _late(*_: Any) -> None:
    raise TimeoutError
