"""A replica may be a plan: the model over two devices, twice, on four."""

import threading

import pytest
import torch
from dispatch.chunks_of import assert_close, mlp

import baechi

X = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))


def plans() -> list[baechi.Plan]:
    cluster = baechi.Cluster.virtual(4)
    graph = baechi.profile(mlp(), X[:3], cluster=cluster, source="estimate")
    return [
        baechi.Plan.from_device_map(graph, cluster, {"0": first, "1": first, "2": first + 1})
        for first in (0, 2)
    ]


@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_a_plan_over_two_devices_twice(workers: str) -> None:
    threads = threading.active_count()
    model = mlp()
    scheduler = baechi.HybridScheduler(plans(), [3, 2])
    assert list(scheduler.load) == ["cpu:0+cpu:1", "cpu:2+cpu:3"]
    dispatched = baechi.dispatch(model, scheduler, workers=workers)  # type: ignore[arg-type]
    with torch.no_grad():
        assert_close(dispatched(X), model(X))
        model[0].bias.add_(1)  # type: ignore[operator]
        assert_close(dispatched(X), model(X))
    assert threading.active_count() == threads


def test_a_plan_at_work_on_the_emulated_cluster_has_all_its_devices_busy() -> None:
    found = plans()
    model = mlp()
    dispatched = baechi.dispatch(model, baechi.HybridScheduler(found, [3, 2]), workers="thread")
    with found[0].cluster as cluster, torch.no_grad():
        assert_close(dispatched(X), model(X))
        assert cluster.emulation.now_s > 0


def test_what_plans_cannot_do_is_said() -> None:
    first, second = plans()
    with pytest.raises(ValueError, match="cpu:0 is there twice"):
        baechi.HybridScheduler([first, first], 3)
    dispatched = baechi.dispatch(mlp(), baechi.HybridScheduler([first, second], 3))
    with pytest.raises(baechi.FatalError, match="those do not train"):
        dispatched(X)
    with (
        torch.no_grad(),
        baechi.dispatch(mlp(), baechi.HybridScheduler([first], 3), workers="process") as one,
    ):
        with pytest.raises(baechi.FatalError, match="is a plan"):
            one(X)
    with pytest.raises(baechi.FatalError, match="emulated and real devices do not mix"):
        baechi.dispatch(mlp(), baechi.HybridScheduler([first, "cpu"], 3))(X)
