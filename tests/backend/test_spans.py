"""What a step takes does not depend on what is still under way when it begins."""

import torch
from torch import nn

import baechi
from baechi.backend.spans import timeline_of
from baechi.records.timeline import Span


def test_the_window_opens_when_the_devices_are_done() -> None:
    """Forward counts from when each device that it computes on is done with what came before."""
    ran = [
        Span("transfer", "", "host>a", 0.0, 1.0, "forward"),
        Span("compute", "x", "a", 4.0, 6.0, "forward"),
        Span("compute", "y", "b", 6.0, 9.0, "forward"),
        Span("compute", "y", "b", 10.0, 14.0, "backward"),
    ]
    assert timeline_of(ran, {}, {}).makespan_s == 9.0 + 4.0
    assert timeline_of(ran, {}, {}, before_s={"a": 4.0, "b": 3.0}).makespan_s == 5.0 + 4.0
    assert (
        timeline_of(ran, {}, {}, before_s={"a": 0.5, "c": 8.0}).makespan_s == 8.5 + 4.0
    )  # c computes nothing
    assert timeline_of(ran, {}, {}, before_s={"a": -3.0}).makespan_s == 9.0 + 4.0


def test_an_optimizer_still_at_work_is_not_the_step() -> None:
    """A loop that never waits for the devices measures no longer steps than one that does.

    They are shorter by what the optimizer's work hides: the upload, and the host's first launches.
    """

    def step_s(*, wait: bool) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))
        cluster = baechi.Cluster.virtual(2, like="A100-80GB")
        x = torch.randn(8, 2048)
        baechi.distribute(model, x, cluster=cluster, device_map={"0": 0, "1": 0, "2": 1})
        optimizer = torch.optim.Adam(model.parameters())
        with cluster:
            for _ in range(3):
                model(x).sum().backward()
                optimizer.step()
                if wait:
                    cluster.emulation.synchronize()
            return baechi.last_step(model).makespan_s

    assert 0.75 < step_s(wait=False) / step_s(wait=True) <= 1.0
