"""What `check` found, as data."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from order.unforeseen import captured, capturing
from run.late import late
from run.worlds import World, crossed, x
from torch import Tensor, nn

import baechi
from baechi.records.timeline import Timeline


def looks(net: Any, x: Tensor) -> Any:
    """Code that asks for a value of what waits for layers behind it."""
    first = net.a(x)
    high = (first > -1e9).all()
    return first + net.b(x) * net.c(x) if captured() or bool(high) else first


def checked(code: Any, *, training: bool = True) -> Any:
    """The check of a small model on three emulated devices."""
    world = World(code, x())
    model = world.build().train(training)
    with capturing():
        baechi.distribute(model, world.inputs(), cluster=baechi.Cluster.virtual(3), placer=late)
    return baechi.check(model, world.inputs())


def test_json_says_all_that_was_found() -> None:
    """Equality, orders, waits, forced values, times and peaks of the three runs are in the text."""
    found = checked(looks)
    body = json.loads(found.to_json())
    assert body["baechi"] == "check"
    assert body["equal"] is True and body["in_plan_order"] is found.in_plan_order
    assert body["gradient_difference"] == found.gradient_difference
    assert [one["name"] for one in body["ran"]] == ["one device", "reordering off", "reordering on"]
    for written, one in zip(body["ran"], found.ran, strict=True):
        timeline = Timeline.from_body(written["timeline"])
        assert timeline.makespan_s == one.timeline.makespan_s > 0
        assert timeline.peak_bytes == dict(one.timeline.peak_bytes)
        assert timeline.spans == one.timeline.spans
        assert written["launched"] == {device: list(layers) for device, layers in one.launched.items()}
        assert (written["forced"], written["deferred"]) == (list(one.forced), one.deferred)
    on = body["ran"][-1]
    assert on["deferred"] and on["launched"] and "test_check.py" in on["forced"][0]


def test_what_is_not_there_is_null() -> None:
    """A gradient that one run lacks makes the difference infinite, which JSON has no number for; a run on
    real devices that nobody timed has no timeline."""
    found = checked(crossed, training=False)
    assert json.loads(found.to_json())["gradient_difference"] == 0
    found = replace(found, gradient_difference=math.inf)
    body = json.loads(replace(found, ran=(replace(found.ran[0], timeline=None),)).to_json())
    assert body["gradient_difference"] is None and body["ran"][0]["timeline"] is None


def test_peaks_count_the_optimizer() -> None:
    """Steps and peaks are those that the plan predicts, with the state of its optimizer."""
    model, inputs = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)), torch.ones(4, 64)
    baechi.distribute(model, inputs, cluster=baechi.Cluster.virtual(2), optimizer="adam")
    predicted = baechi.plan_of(model).timeline
    for one in baechi.check(model, inputs).ran[1:]:
        assert one.timeline is not None and one.timeline.peak_bytes == predicted.peak_bytes


class Loss(nn.Module):
    """Two layers and a mean, which is rounded otherwise if it is a sum over microbatches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layers(x)
        return {"loss": out.square().mean(), "positive": out > 0}


def test_microbatches_round() -> None:
    """What differs by rounding is said to differ by so much."""
    inputs = torch.linspace(-3, 3, 56).reshape(7, 8)
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(
        Loss(), inputs, cluster=cluster, microbatches=3, placer="round-robin", loss_weights="rows"
    )
    found = baechi.check(model, inputs)
    assert found.output_difference < 1e-6 and found.gradient_difference < 1e-6
    assert found.equal == (found.output_difference == 0)
    assert f"differ by at most {found.output_difference:.1e}" in str(replace(found, equal=False))


def test_programs_beside_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with `compile=` runs as its code is written, and as programs; the environment may say no."""
    model, given = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]), torch.ones(2, 4)
    cluster = baechi.Cluster.virtual(2)
    how = baechi.Stages(backend="aot_eager")
    baechi.distribute(model, given, cluster=cluster, placer="even", training=True, compile=how)
    found = baechi.check(model, given)
    assert [one.name for one in found.ran] == ["one device", "as written", "programs"]
    assert found.equal and found.gradient_difference < 1e-6 and "reordering" not in str(found)
    assert [one.programs > 0 for one in found.ran] == [False, False, True]
    assert json.loads(found.to_json())["ran"][2]["programs"] == found.ran[2].programs
    monkeypatch.setenv("BAECHI_COMPILE", "0")
    assert not any(one.programs for one in baechi.check(model, given).ran)


@pytest.mark.full
def test_inductor_beside_the_code() -> None:
    model, given = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]), torch.ones(2, 4)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, given, cluster=cluster, placer="even", training=True, compile=baechi.Stages())
    found = baechi.check(model, given)
    assert [one.name for one in found.ran][2:] == ["programs", "inductor"]
    assert found.ran[3].timeline is None and found.ran[3].programs
    assert found.output_difference < 1e-5 and found.gradient_difference < 1e-5
