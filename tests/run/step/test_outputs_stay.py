"""`outputs="device"`: what a model returns stays where it was made, and nothing waits for it."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from run.launched import LAUNCHERS, runtime_of
from run.two import Two
from same import identical
from torch import Tensor, nn

import baechi
from baechi.errors import StreamRaceError

pytestmark = pytest.mark.default_cases(2)

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
EVERYWHERE = (False, *LAUNCHERS)


@dataclass
class Answer:
    """An output with names, as model libraries have them."""

    first: Tensor
    more: dict[str, tuple[Tensor, ...]]


def answers(self: Any, x: Tensor) -> Answer:
    h = self.a(x)
    return Answer(h, {"both": (self.b(h), h.sum())})


def pair(code: Callable[..., Any], **more: Any) -> tuple[nn.Module, nn.Module, baechi.Cluster]:
    """A plain model, and one with a layer on each of two devices whose outputs stay."""
    torch.manual_seed(0)
    plain = Two(code)
    model = copy.deepcopy(plain)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(
        model, X.clone(), cluster=cluster, device_map={"a": 0, "b": 1, "": 1}, outputs="device", **more
    )
    return plain, model, cluster


def same(one: Answer, other: Answer) -> bool:
    """Same values, of the same kinds."""
    pairs = zip((one.first, *one.more["both"]), (other.first, *other.more["both"]), strict=True)
    return all(identical(a, b) and a.is_inference() == b.is_inference() for a, b in pairs)


def place(model: nn.Module, tensor: Tensor) -> str:
    return runtime_of(model).backend.place_of(tensor)


@pytest.mark.parametrize("reorder", EVERYWHERE)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_each_output_stays_on_its_device(reorder: Any, mode: Any) -> None:
    """Nested in a dataclass, a dict, a tuple: with the plain model's values and kinds."""
    plain, model, cluster = pair(answers, reorder=reorder)
    with mode():
        expected = plain(X.clone())
        with cluster:
            result = model(X.clone())
            assert "cpu:0>host" not in {span.where for span in baechi.last_step(model).spans}
    assert type(result) is Answer
    assert same(expected, result)
    found = [place(model, tensor) for tensor in (result.first, *result.more["both"])]
    assert found == ["cpu:0", "cpu:1", "cpu:0"]


def test_backward_from_where_outputs_lie() -> None:
    """Two losses on two devices, backward of both at once: the gradients of the plain model."""
    plain, model, cluster = pair(answers)
    answer = plain(X.clone())
    torch.autograd.backward([answer.first.sum(), answer.more["both"][0].pow(2).sum()])
    with cluster:
        answer = model(X.clone())
        torch.autograd.backward([answer.first.sum(), answer.more["both"][0].pow(2).sum()])
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert identical(one.grad, other.grad)


def test_outputs_on_two_devices_are_not_combined() -> None:
    """It raises as on real devices; what is brought together first gives the plain model's gradients."""
    plain, model, cluster = pair(answers)
    answer = plain(X.clone())
    (answer.first + answer.more["both"][0]).sum().backward()
    with cluster:
        answer = model(X.clone())
        with pytest.raises(RuntimeError, match=r"cpu:0.*cpu:1|cpu:1.*cpu:0"):
            answer.first + answer.more["both"][0]
        second = answer.more["both"][0]
        (answer.first.to(second.device) + second).sum().backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert identical(one.grad, other.grad)


def test_what_the_model_was_given_is_returned_as_it_is() -> None:
    """An input, a view of an input and a parameter are the same objects and memory, where they were."""

    def code(self: Any, x: Tensor) -> Any:
        return x, x.view(4, 3), self.b.weight, self.b(self.a(x))

    _, model, cluster = pair(code)
    with cluster:
        x = X.clone()
        same, view, weight, _ = model(x)
        assert same is x
        assert view.data_ptr() == x.data_ptr()
        assert weight is model.b.weight  # type: ignore[union-attr]
        assert (place(model, view), place(model, weight)) == ("host", "cpu:1")


def test_autocast() -> None:
    """Outputs of half the precision, as without baechi."""
    plain, model, cluster = pair(answers)
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(X.clone())
        with cluster:
            result = model(X.clone())
    assert result.more["both"][0].dtype == torch.bfloat16
    assert same(expected, result)


def test_a_part_called_alone() -> None:
    """A layer called outside of the model leaves its output on its device, too."""
    _, model, cluster = pair(answers)
    with cluster:
        assert place(model, model.b(X.clone())) == "cpu:1"  # type: ignore[operator]


def sent(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`b` reads what `a` makes, which is kept and returned; both read the input."""
    self.kept = self.a(x)
    return self.kept, self.kept[1:], self.b(self.kept) + self.b(x)


WRITTEN: dict[str, Callable[[Any, Tensor, tuple[Tensor, ...]], Tensor]] = {
    "output": lambda model, x, out: out[0],
    "view": lambda model, x, out: out[1],
    "attribute": lambda model, x, out: model.kept,
    "input": lambda model, x, out: x,
}


@pytest.mark.parametrize("what", WRITTEN)
def test_what_the_caller_writes_was_read(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent in the step may be written after it: that waits, and the clocks show when it does not."""

    def call_and_write() -> None:
        _, model, cluster = pair(sent)
        with cluster, torch.no_grad():
            x = X.to("cpu:0")
            WRITTEN[what](model, x, model(x)).zero_()
            cluster.emulation.synchronize()

    call_and_write()
    monkeypatch.setattr("baechi.backend.sends.ref", lambda memory: lambda: None)  # as if all were gone
    with pytest.raises(StreamRaceError, match="zero_"):
        call_and_write()


@pytest.mark.parametrize("outputs", [None, "inputs", "device"])
def test_on_one_device(outputs: Any) -> None:
    """A model that lies on one device obeys, too; by default outputs are where the inputs are."""
    torch.manual_seed(0)
    model = Two(answers)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    baechi.distribute(model, X.clone(), cluster=cluster, placer="single", outputs=outputs)
    with cluster:
        result = model(X.clone())
    expected = plain(X.clone())
    assert same(expected, result)
    assert place(model, result.first) == ("cpu:0" if outputs == "device" else "host")


def test_the_plan_keeps_it(tmp_path: Path) -> None:
    """A plan's file, a copy and a pickle of the model: outputs stay. `assign` may say otherwise."""
    _, model, cluster = pair(answers)
    baechi.plan_of(model).save(tmp_path / "plan.json")
    again = baechi.assign(Two(answers), tmp_path / "plan.json")
    home = baechi.assign(Two(answers), tmp_path / "plan.json", outputs="inputs")
    with cluster:
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), again):
            assert place(other, other(X.clone()).first) == "cpu:0"
        assert place(home, home(X.clone()).first) == "host"
    sent = [baechi.plan_of(other).timeline.counters["transfers"] for other in (again, home)]
    assert sent[1] == sent[0] + 6  # by default three outputs go to the host, and their gradients come back
