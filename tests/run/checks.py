"""Two steps of a distributed model against those of the plain one."""

from collections.abc import Callable
from typing import Any

from architectures.base import noise, seeded
from run.late import late
from same import ROUNDING, assert_same, step
from torch import nn

import baechi

REORDER = (False, "host", "threads")


def vectors() -> dict[str, Any]:
    return {"x": noise(4, 8)}


def check_steps(
    plain: nn.Module,
    model: nn.Module,
    cluster: baechi.Cluster,
    inputs: Callable[[], dict[str, Any]],
    *,
    training: bool,
) -> None:
    """Two steps of a distributed model are those of the plain one."""
    for _ in range(2):
        expected = step(plain, inputs(), training=training)
        with cluster:
            result = step(model, inputs(), training=training)
        assert_same(expected, result, tolerance=ROUNDING)


def check(
    build: Callable[[], nn.Module],
    inputs: Callable[[], dict[str, Any]],
    device_map: dict[str, int],
    reorder: Any,
    *,
    training: bool = True,
) -> None:
    """Two steps of a model placed by hand are those of the plain one."""
    plain, model = seeded(build)(), seeded(build)().train(training)
    cluster = baechi.Cluster.virtual(3)
    baechi.distribute(model, inputs(), cluster=cluster, device_map=device_map, reorder=reorder)
    check_steps(plain, model, cluster, inputs, training=training)


def check_late(
    build: Callable[[], nn.Module], inputs: Callable[[], dict[str, Any]], reorder: Any, *, training: bool
) -> nn.Module:
    """Two steps of a model of which much waits are those of the plain one."""
    plain, model = seeded(build)(), seeded(build)().train(training)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, inputs(), cluster=cluster, placer=late, reorder=reorder)
    check_steps(plain, model, cluster, inputs, training=training)
    return model
