"""Prints the table of times layer by layer over times in place, on the CPU (docs/benchmarks.md)."""

import logging
from functools import partial

import torch
from architectures.base import Architecture
from architectures.of_zoo import ZOO

import baechi
from baechi.verbs.profiling import Source

KIND = "cpu"


def _seconds(architecture: Architecture, source: Source) -> list[tuple[float, float]]:
    """Forward and backward seconds of each layer; functional ops are scaled from layers in both ways."""
    graph = baechi.profile(
        architecture.build().train(),
        architecture.inputs(),
        cluster=baechi.Cluster.virtual(1),
        training=True,
        source=source,
    )
    layers = [name for name in graph.placed() if not name.startswith("glue:")]
    seconds = partial(graph.seconds, kind=KIND)
    return [(seconds(name, "forward_s"), seconds(name, "backward_s")) for name in layers]


def main() -> None:
    """One row for each model: sums by layers over sums in place, and how many layers lie far off."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # that seconds of a CPU are no GPU's
    print("| model | layers | forward | backward | layers below 0.6 or above 1.6, forward |")
    print("|---|---|---|---|---|")
    for architecture in ZOO:
        alone, in_place = (_seconds(architecture, source) for source in ("layers", "hooks"))
        forward, backward = (
            sum([row[phase] for row in alone]) / sum([row[phase] for row in in_place]) for phase in (0, 1)
        )
        each = [one[0] / other[0] for one, other in zip(alone, in_place, strict=True)]
        far = sum(not 0.6 <= ratio <= 1.6 for ratio in each)
        print(f"| {architecture.name} | {len(each)} | {forward:.2f} | {backward:.2f} | {far} |", flush=True)


if __name__ == "__main__":
    main()
