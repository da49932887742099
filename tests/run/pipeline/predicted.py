"""A step run dry, beside the predicted one."""

from typing import Any

import pytest
from run.pipeline.nets import noise, seeded
from run.pipeline.witness import cluster_of
from torch import nn

import baechi

MICROBATCHES = 4

RATES = pytest.mark.parametrize(("rate", "at_most"), [(1e9, 0.02), (1e12, 0.05)], ids=["compute", "launches"])
ORDERS = pytest.mark.parametrize("order", ["gpipe", "1f1b"])


def timelines(
    kind: type[nn.Module], shape: tuple[int, ...], rate: float, order: Any, placer: str = "even"
) -> tuple[baechi.Timeline, baechi.Timeline]:
    """Of a step on three devices: run dry, and predicted."""
    cluster, net, x = cluster_of(3, rate), seeded(kind), noise(*shape)
    graph = baechi.profile(
        net, x, cluster=cluster, training=True, source="estimate", microbatches=MICROBATCHES
    )
    pipeline = baechi.pipeline(baechi.place(graph, cluster, placer), MICROBATCHES, order)
    return baechi.dry_run(net, x, pipeline), pipeline.timeline
