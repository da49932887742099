"""How true the simulator is beyond its bench: each small architecture simulated, and run dry.

    python -m architectures.simulated [half] [name ...]

Emulated CPUs, `m-etf` on two and `random:1` on two and four, inference, SGD and Adam both ways. `half` is
`looked-at` (every second architecture; what changes of the simulator may look at), `aside` or `all`. The
rows that are out of the aim are printed, then how many are.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from benches.ablation import in_aim

import baechi
from architectures import OTHERS, OWN, Architecture
from baechi.errors import DryRunError

_PLACED = (("m-etf", 2), ("random:1", 2), ("random:1", 4))
_MODES = ("inference", "sgd", "adam")


class Row(NamedTuple):
    """A step simulated beside its dry run: by how much each figure is off, as a part of what it is."""

    name: str
    placed: str
    mode: str
    step_off: float
    peaks_off: tuple[float, ...]


def rows_of(architecture: Architecture) -> Iterator[Row]:
    """Simulate and run dry one architecture.

    Yields:
        One row for each way to place and to run it that a dry run does not refuse.
    """
    for mode in _MODES:
        training = mode != "inference"
        model, inputs = architecture.build().train(training), architecture.inputs()
        graph = baechi.profile(
            model,
            inputs,
            cluster=baechi.Cluster.virtual(1, like="CPU"),
            training=training,
            source="estimate",
        )
        for placer, devices in _PLACED:
            cluster = baechi.Cluster.virtual(devices, memory="64GiB", like="CPU")
            plan = baechi.place(graph, cluster, placer, optimizer=mode if training else None)
            try:
                ran = _run_dry(architecture, plan, mode)
            except DryRunError as refused:
                print(f"{architecture.name} {mode}: refused, {refused}".splitlines()[0], flush=True)
                break
            said, pairs = plan.timeline, []
            for name, size in ran.peak_bytes.items():
                if size or said.peak_bytes[name]:
                    pairs.append(said.peak_bytes[name] / size - 1 if size else float("inf"))
            step_off = said.makespan_s / ran.makespan_s - 1
            yield Row(architecture.name, f"{placer} on {devices}", mode, step_off, tuple(pairs))


def _run_dry(architecture: Architecture, plan: baechi.Plan, mode: str) -> baechi.Timeline:
    model, inputs = architecture.build().train(mode != "inference"), architecture.inputs()
    if mode != "adam":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3) if mode == "sgd" else None
        return baechi.dry_run(model, inputs, plan, optimizer=optimizer)
    ways = [torch.optim.Adam(model.parameters(), lr=1e-3, foreach=each) for each in (True, False)]
    ran = [baechi.dry_run(model, inputs, plan, optimizer=optimizer) for optimizer in ways]
    peaks = {name: max([timeline.peak_bytes[name] for timeline in ran]) for name in plan.cluster.names}
    return replace(ran[0], peak_bytes=peaks)


def main(half: str = "looked-at", *names: str) -> None:
    """Print the rows that are out of the aim, and how many are."""
    every = (*OTHERS, *OWN)
    chosen: Iterable[Architecture] = {"looked-at": every[::2], "aside": every[1::2], "all": every}[half]
    rows: list[Row] = []
    for architecture in chosen:
        if names and architecture.name not in names:
            continue
        for row in rows_of(architecture):
            rows.append(row)
            if abs(row.step_off) > 0.05 or not all(map(in_aim, row.peaks_off)):
                peaks = " ".join([f"{off:+.2%}" + "*" * (not in_aim(off)) for off in row.peaks_off])
                star = "*" * (abs(row.step_off) > 0.05)
                print(
                    f"{row.name} | {row.placed} | {row.mode} | {row.step_off:+.1%}{star} | {peaks}",
                    flush=True,
                )
    peaks_off = [off for row in rows for off in row.peaks_off]
    steps = sum([abs(row.step_off) <= 0.05 for row in rows])
    low, high = sum([off < 0 for off in peaks_off]), sum([off > 0.15 for off in peaks_off])
    print(f"{steps} of {len(rows)} steps, {sum(map(in_aim, peaks_off))} of {len(peaks_off)} peaks", end="")
    print(f" ({low} low, {high} high) are within the aim")


if __name__ == "__main__":
    main(*sys.argv[1:])
