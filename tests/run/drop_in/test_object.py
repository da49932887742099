"""Promise 2: the object, its parameters, its state dict, its optimizer: as before."""

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from same import identical
from torch import nn
from torch.nn import functional as F

import baechi
from baechi.errors import BaechiError, CaptureError, PlacementError, PlanError, RecordError


class Towers(nn.Module):
    """Two branches that meet: the smallest model that is worth distributing."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
        self.right = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        joined = torch.cat([self.left(x), self.right(x)], dim=1)
        out: torch.Tensor = self.head(joined * scale)
        return out


def towers(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Towers()


def batch() -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def spread(model: nn.Module, n: int = 3) -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(n, memory="1MiB")
    baechi.distribute(model, batch(), cluster=cluster, placer="random:1")
    return cluster


def attributes(model: nn.Module) -> dict[str, set[str]]:
    return {name: set(vars(module)) for name, module in model.named_modules()}


def test_same_object_parameters_and_keys() -> None:
    """`distribute` returns the model itself, with the same parameters under the same keys."""
    model = towers()
    before = [id(p) for p in model.parameters()], list(model.state_dict()), type(model)
    assert baechi.distribute(model, batch(), cluster=baechi.Cluster.virtual(3), placer="random:0") is model
    assert before == ([id(p) for p in model.parameters()], list(model.state_dict()), type(model))


@pytest.mark.parametrize("early", [True, False], ids=["optimizer before", "optimizer after"])
def test_optimizer_trains(early: bool) -> None:
    """An optimizer made before or after `distribute` trains as on one device, state and all."""
    plain, model = towers(), towers()
    optimizers = [torch.optim.Adam(plain.parameters(), lr=0.1)]
    if early:
        optimizers.append(torch.optim.Adam(model.parameters(), lr=0.1))
    cluster = spread(model)
    if not early:
        optimizers.append(torch.optim.Adam(model.parameters(), lr=0.1))
    with cluster:
        for _ in range(4):
            for network, optimizer in zip((plain, model), optimizers, strict=True):
                optimizer.zero_grad()
                F.mse_loss(network(batch()), torch.ones(5, 3)).backward()
                optimizer.step()
    assert all(identical(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_restore_leaves_no_trace() -> None:
    """After `restore` every module has the attributes that it had, and forward is plain again."""
    model = towers()
    before, expected = attributes(model), model.eval()(batch())
    spread(model)
    assert attributes(model) != before
    assert baechi.restore(model) is model
    assert attributes(model) == before
    assert all("forward" not in vars(module) for module in model.modules())
    assert identical(model(batch()), expected)


def test_one_device_wraps_nothing() -> None:
    """A plan on one device leaves every forward as it was."""
    model = towers()
    baechi.distribute(model, batch(), cluster=baechi.Cluster.virtual(1))
    assert all("forward" not in vars(module) for module in model.modules())
    assert baechi.plan_of(model).devices_used == ("cpu:0",)
    baechi.restore(model)


def pickled(model: nn.Module) -> nn.Module:
    copied: nn.Module = pickle.loads(pickle.dumps(model))
    return copied


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_use_their_own_weights(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    """A copy of a distributed model computes with its own weights, and the original with its."""
    model = towers().eval()
    spread(model)
    expected = model(batch())
    copied = duplicate(model)
    assert identical(copied(batch()), expected)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.count_nonzero(copied(batch())) == 0
    assert identical(model(batch()), expected)


def test_signature_stays() -> None:
    """Whoever reads the signature of `forward`, as Hugging Face's Trainer does, sees the model's own."""
    model = towers()
    before = inspect.signature(model.forward)
    spread(model)
    assert inspect.signature(model.forward) == before


def test_first_call_plans() -> None:
    """Without inputs the first call plans, with its inputs; until then nothing is changed."""
    model, expected = towers().eval(), towers().eval()(batch())
    baechi.distribute(model, cluster=baechi.Cluster.virtual(2), placer="random:0")
    with pytest.raises(BaechiError, match="first call"):
        baechi.plan_of(model)
    assert identical(model(batch()), expected)
    assert len(baechi.plan_of(model).devices_used) == 2


def test_first_call_that_fails_can_be_repeated() -> None:
    """A first call with wrong inputs raises, and the next one plans."""
    model = towers().eval()
    baechi.distribute(model, cluster=baechi.Cluster.virtual(2), placer="random:0")
    with pytest.raises(CaptureError):
        model(torch.randn(5, 7))
    model(batch())
    assert baechi.plan_of(model).placer == "random:0"


def test_restore_before_the_first_call() -> None:
    """A model that waits for its first call can be restored, and is plain."""
    model = towers()
    before = attributes(model)
    baechi.distribute(model, cluster=baechi.Cluster.virtual(2))
    baechi.restore(model)
    assert attributes(model) == before


def test_keyword_and_nested_inputs() -> None:
    """Inputs may be a tensor, a tuple, a dict or `Inputs`; the plan is the same."""
    plans = []
    for given in (batch(), (batch(),), {"x": batch()}, baechi.Inputs(batch(), scale=1.0)):
        model = towers()
        baechi.distribute(model, given, cluster=baechi.Cluster.virtual(2), placer="random:0")
        plans.append(dict(baechi.plan_of(model).device_of))
    assert plans == [plans[0]] * 4


def test_moves_are_refused_casts_are_not() -> None:
    """A distributed model does not go to one device as a whole; its dtype can change."""
    model = towers()
    spread(model)
    for move in (lambda: model.to("cuda:0"), lambda: model.cpu(), lambda: model.cuda()):
        with pytest.raises(BaechiError, match="stays where its plan says"):
            move()
    assert model.to(torch.float64)(batch().double()).dtype == torch.float64


def test_device_map_attribute() -> None:
    """Several devices show in `hf_device_map`, one device does not."""
    model = towers()
    spread(model)
    assert set(model.hf_device_map.values()) == {"cpu:0", "cpu:1", "cpu:2"}
    baechi.restore(model)
    assert not hasattr(model, "hf_device_map")


def test_layers_on_one_device_and_a_functional_op_on_another() -> None:
    """A trainer reads a map of one entry as "move it", and moving it to where its layers lie does nothing."""
    model = towers().eval()
    expected = model(batch())
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(model, batch(), cluster=cluster, source="estimate")
    where = {name: "cpu:1" if name.startswith("glue:") else "cpu:0" for name in graph.placed()}
    baechi.assign(model, baechi.Plan(graph, cluster, where))
    assert len(model.hf_device_map) > 1 and set(model.hf_device_map.values()) == {"cpu:0"}
    assert model.to("cpu") is model
    assert identical(model(batch()), expected)
    with pytest.raises(BaechiError, match="stays where its plan says"):
        model.to("meta")


def test_plan_saved_and_loaded(tmp_path: object) -> None:
    """A plan from a file distributes another instance of the same model."""
    model = towers().eval()
    spread(model)
    baechi.plan_of(model).save(f"{tmp_path}/plan.json")
    other = baechi.assign(towers().eval(), baechi.Plan.load(f"{tmp_path}/plan.json"))
    assert identical(other(batch()), model(batch()))


def test_device_map_by_hand() -> None:
    """A device map places by prefixes, in-place layers going with what they write."""
    model = towers().eval()
    expected = model(batch())
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, batch(), cluster=cluster, device_map={"left": 0, "right": "cpu:1", "head": 1})
    assert baechi.plan_of(model).device_of["left.2"] == "cpu:0"
    with cluster:
        assert identical(model(batch()), expected)


def wrong_inputs() -> list[tuple[str, dict[str, object], type[Exception], str]]:
    cluster = baechi.Cluster.virtual(2)
    tiny = baechi.Cluster.virtual(2, memory=100)
    return [
        ("memory", {"cluster": tiny}, PlacementError, "short"),
        ("placer", {"placer": "m-best"}, ValueError, "m-etf"),
        ("seed", {"placer": "random:x"}, ValueError, "seed"),
        ("shape", {"inputs": torch.randn(5, 7)}, CaptureError, "does not run"),
        ("missing", {"inputs": {}}, CaptureError, "missing a required argument"),
        ("extra", {"inputs": {"x": batch(), "y": 1}}, CaptureError, "unexpected keyword"),
        ("empty list", {"inputs": []}, ValueError, "an example for each path"),
        ("mixed list", {"inputs": [batch(), {"x": batch()}]}, TypeError, "several examples are a list of"),
        ("inputs twice", {"examples": [batch()]}, ValueError, "not both"),
        ("set", {"inputs": {1}}, TypeError, "baechi.Inputs"),
        ("map misses", {"device_map": {"left": 0, "right": 1}, "cluster": cluster}, PlanError, "head"),
        ("map device", {"device_map": {"": 7}, "cluster": cluster}, PlanError, "the devices are cpu:0"),
        ("map text", {"device_map": "auto"}, ValueError, "mapping"),
        ("map typo", {"device_map": {"": 0, "lefd": 1}, "cluster": cluster}, PlanError, "is it 'left'"),
        ("cluster type", {"cluster": 2}, TypeError, "a baechi.Cluster or text such as"),
        ("cluster text", {"cluster": "2xTPU"}, ValueError, "no datasheet of a device 'TPU'"),
        ("cluster elsewhere", {"cluster": "2xH100-80GB"}, PlanError, "virtual"),
        ("plan type", {"plan": 2}, TypeError, "a baechi.Plan or the path"),
        ("plan and memory", {"plan": "p.json", "max_memory": {0: 1}}, ValueError, "taken as it is"),
        ("memory type", {"max_memory": "10GiB", "cluster": cluster}, RecordError, "sizes by device"),
        (
            "other's optimizer",
            {"optimizer": torch.optim.SGD(towers().parameters())},
            ValueError,
            "of another",
        ),
        ("optimizer class", {"optimizer": torch.optim.SGD}, TypeError, "a name such as"),
        ("max memory", {"max_memory": {5: "1GiB"}, "cluster": cluster}, ValueError, "no device"),
        ("no memory", {"max_memory": {0: 0, 1: 0}, "cluster": cluster}, ValueError, "leaves no device"),
        ("no split", {"no_split_module_classes": ["Block"]}, ValueError, "Block"),
        ("optimizer", {"optimizer": "adamantium"}, ValueError, "adamw"),
        ("two choices", {"placer": "m-etf", "device_map": {"": 0}}, ValueError, "one of"),
    ]


@pytest.mark.parametrize("name, options, error, text", wrong_inputs(), ids=[w[0] for w in wrong_inputs()])
def test_bad_input(name: str, options: dict[str, object], error: type[Exception], text: str) -> None:
    """Each wrong input gets a clear error, and the model is as it was."""
    model = towers()
    before, states = attributes(model), {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(error, match=text):
        baechi.distribute(model, **{"inputs": batch(), **options})  # type: ignore[arg-type]
    assert attributes(model) == before
    assert all(identical(value, states[key]) for key, value in model.state_dict().items())


def test_plan_of_another_model() -> None:
    """A plan of another model, or of one with other sizes, is refused with what differs."""
    model = towers()
    spread(model)
    plan = baechi.plan_of(model)
    wider = towers()
    wider.head = nn.Linear(16, 4)
    for other, fault in ((nn.Sequential(nn.Linear(6, 8)), "left.0"), (wider, "head take")):
        before = attributes(other)
        with pytest.raises(PlanError, match=fault):
            baechi.assign(other, plan)
        assert attributes(other) == before


def test_already_distributed() -> None:
    """A distributed model, or one that holds one, is not distributed again."""
    model = towers()
    spread(model)
    for again in (model, nn.Sequential(model)):
        with pytest.raises(BaechiError, match="already"):
            baechi.distribute(again, batch(), cluster=baechi.Cluster.virtual(2))
    with pytest.raises(BaechiError, match="nothing to restore"):
        baechi.restore(towers())


def test_optimizer_instance_counts() -> None:
    """An optimizer handed in is counted in the plan's memory: Adam keeps two values per weight."""
    peaks = []
    for optimizer in (None, torch.optim.Adam, torch.optim.SGD):
        model = towers()
        made = optimizer(model.parameters()) if optimizer else None
        baechi.distribute(model, batch(), cluster=baechi.Cluster.virtual(1), optimizer=made, verify=False)
        peaks.append(baechi.plan_of(model).timeline.peak_bytes["cpu:0"])
    sizes = [sum(p.nbytes for p in m.parameters(recurse=False)) for m in towers().modules()]
    stepping = 4 * sum(sizes) + max(sum(sizes), 3 * max(sizes)) + sum(b.nbytes for b in towers().buffers())
    assert peaks == [peaks[0], stepping, peaks[0]]


def test_custom_placer() -> None:
    """A callable is a placer."""

    def all_on_the_last(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
        return baechi.Plan(graph, cluster, dict.fromkeys(graph.placed(), cluster.names[-1]), placer="last")

    model = towers()
    baechi.distribute(model, batch(), cluster=baechi.Cluster.virtual(3), placer=all_on_the_last)
    assert baechi.plan_of(model).devices_used == ("cpu:2",)


def test_max_memory_forbids_a_device() -> None:
    """A device given 0 bytes is not used."""
    model = towers()
    cluster = baechi.Cluster.virtual(3)
    baechi.distribute(model, batch(), cluster=cluster, placer="random:0", max_memory={1: 0})
    assert set(baechi.plan_of(model).device_of.values()) == {"cpu:0", "cpu:2"}


def test_a_part_called_alone() -> None:
    """A layer or a part of the model works outside the root's step, its outputs where its inputs lie."""
    model, plain = towers().eval(), towers().eval()
    cluster = spread(model)
    with cluster:
        assert identical(model.left(batch()), plain.left(batch()))
        assert identical(model.head(torch.ones(2, 16)), plain.head(torch.ones(2, 16)))


def test_an_exception_leaves_the_next_step_right() -> None:
    """An exception inside a layer reaches the caller with the layer's name; the next step works."""
    model, plain = towers().eval(), towers().eval()
    cluster = spread(model)
    with cluster:
        with pytest.raises(RuntimeError, match="shapes") as caught:
            model(torch.randn(5, 7))
        assert any("in layer left.0 (Linear) on cpu:" in note for note in caught.value.__notes__)
        assert identical(model(batch()), plain(batch()))


def test_plan_keeps_its_cluster_when_memory_is_given() -> None:
    """`max_memory` shows in the plan's cluster."""
    model = towers()
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, batch(), cluster=cluster, placer="single", max_memory={0: "1MiB"})
    expected = replace(cluster.devices[0], memory_bytes=2**20)
    assert baechi.plan_of(model).cluster.devices[0] == expected
