"""What a user reads where memory is short: model, batch, kind of devices, one shortage; no inner frames."""

import logging
import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi import Cluster, PlacementError
from baechi.verbs import profile

X = torch.zeros(8, 64)


class Joined(nn.Module):
    """A layer and its loss, which the code joins; or two layers that share a weight."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        made = self.b(self.a(x))
        return nn.functional.cross_entropy(made, torch.zeros(len(x), dtype=torch.long))


def refusal(model: nn.Module, memory: int | str, **how: Any) -> PlacementError:
    """What `distribute` raises; `fits` names the same shortage."""
    cluster = Cluster.virtual(4, memory=memory, like="A100-40GB")
    with pytest.raises(PlacementError) as caught:
        baechi.distribute(model, X, cluster=cluster, optimizer="adam", **how)
    error = caught.value
    if not how:
        fit = baechi.fits(model, X, cluster, optimizer="adam")
        assert not fit and fit.short_bytes == error.short_bytes and fit.reason in str(error)
    return error


@pytest.mark.parametrize("memory", [20_000, 50_000, 80_000])
@pytest.mark.parametrize("how", [{}, {"microbatches": 2}])
def test_batch_kind_and_one_shortage(memory: int, how: dict[str, int]) -> None:
    """A layer too large, all too large, no placement found; and the frames are few."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(5)])
    error = refusal(model, memory, **how)
    lines, parts = str(error).splitlines(), " in 2 microbatches" if how else ""
    limit = baechi.units.format_bytes(memory)
    assert lines[0] == (
        f"Sequential with a batch of 8{parts} (training with adam) does not fit 4 x A100-40GB of {limit}:"
    )
    assert lines[-1].startswith("What would help: ") and "All layers need" not in str(error)
    assert len([line for line in lines if " short" in line]) <= 2
    assert error.__cause__ is None and error.__suppress_context__
    assert len(traceback.extract_tb(error.__traceback__)) <= 5


def test_what_must_share_a_device_is_named() -> None:
    """Of ties is spoken where weights are tied, and of them alone."""
    said = {}
    for tied in (False, True):
        graph = baechi.profile(Joined(tied=tied), X.repeat(32, 1), cluster=Cluster.virtual(2))
        for memory in range(100_000, 400_000, 4_000):
            try:
                baechi.place(graph, Cluster.virtual(2, memory=memory), effort=0)
            except PlacementError as error:
                said[tied] = str(error) if "must share" in str(error) else said.get(tied, "")
    assert "(b, functional op cross_entropy, which the model's code joins)" in said[False]
    assert "not tying" not in said[False]
    assert "which share a weight" in said[True] and "not tying the weights of" in said[True]


def test_a_device_out_of_memory_says_its_kind() -> None:
    """The emulated device is full in a step of a larger batch than was planned."""
    cluster = Cluster.virtual(1, memory="1MiB", like="L4")
    model = baechi.distribute(nn.Linear(64, 64), X, cluster=cluster)
    with cluster, pytest.raises(baechi.DeviceMemoryError, match=r"cpu:0 is out of memory: .* \(of L4\) are"):
        model(torch.zeros(4000, 64))


def test_no_accelerator(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a process says that devices are emulated; who asks for GPUs is refused."""
    monkeypatch.setattr(profile, "has_accelerator", lambda: False)
    profile._tell_emulated.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            baechi.distribute(nn.Linear(64, 64), X)
    assert [r.message for r in caplog.records if "emulated" in r.message] == [
        "no accelerator is visible: two A100-80GB are emulated (baechi.Cluster.virtual(2)), and the model "
        "runs on the CPU; cluster='cuda' insists on GPUs"
    ]
    if not torch.cuda.is_available():
        with pytest.raises(
            baechi.BaechiError, match=r"no accelerator is visible: use baechi.Cluster.virtual"
        ):
            baechi.distribute(nn.Linear(64, 64), X, cluster="cuda")
