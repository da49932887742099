"""A checkpoint goes from its files straight to the devices of a model that was on `meta`."""

import copy
import json
import logging
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from architectures import HELD_IN
from safetensors import safe_open
from safetensors.torch import save_file
from same import assert_same, identical, step
from torch import nn

import baechi
from baechi.errors import BaechiError, CheckpointError
from baechi.run.weights import checkpoint

pytestmark = pytest.mark.default_cases(2)

ARCHITECTURES = {row.name: row for row in HELD_IN if row.name in ("llama", "t5")}


def built_on_meta(name: str) -> nn.Module:
    """A model without values, but for the buffers that no checkpoint has."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    with torch.device("meta"):
        model = ARCHITECTURES[name].build()
    if name == "llama":
        model.model.rotary_emb = LlamaRotaryEmbedding(model.config)
    return model


@pytest.fixture(scope="module", params=ARCHITECTURES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a model, and the folder of its checkpoint, in many shards."""
    folder = tmp_path_factory.mktemp(request.param)
    ARCHITECTURES[request.param].build().save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 4
    return request.param, folder


def planned(model: nn.Module, name: str, placer: str, *, training: bool) -> baechi.Cluster:
    """Plan a model on `meta` offline, and distribute it over three devices."""
    cluster = baechi.Cluster.virtual(3, memory="1GiB")
    inputs = ARCHITECTURES[name].inputs()
    graph = baechi.profile(model, inputs, cluster=cluster, training=training, source="estimate")
    baechi.assign(model, baechi.place(graph, cluster, placer))
    return cluster


@pytest.mark.parametrize("inside", [True, False], ids=["while emulated", "before"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("placer", ["m-etf", "random:0"])
def test_equals_the_plain_model(saved: tuple[str, Path], placer: str, training: bool, inside: bool) -> None:
    """Planned offline, loaded from shards: outputs and gradients of the model that was saved."""
    name, folder = saved
    model = built_on_meta(name)
    cluster = planned(model, name, placer, training=training)
    before = [id(parameter) for parameter in model.parameters()]
    if not inside:
        baechi.load(model, folder)
    with cluster:
        if inside:
            assert baechi.load(model, folder) is model
        result = step(model, ARCHITECTURES[name].inputs(), training=training)
    assert before == [id(parameter) for parameter in model.parameters()]
    plain = ARCHITECTURES[name].build()
    assert_same(step(plain, ARCHITECTURES[name].inputs(), training=training), result, tolerance=2e-5)


@pytest.mark.parametrize("inside", [True, False], ids=["while emulated", "before"])
def test_memory_is_that_of_a_model_that_had_its_weights(inside: bool, tmp_path: Path) -> None:
    """Each tensor takes its place on its own device and nowhere else."""
    loaded, assigned = built_on_meta("t5"), ARCHITECTURES["t5"].build()
    assigned.save_pretrained(tmp_path)
    cluster = planned(loaded, "t5", "random:1", training=False)
    baechi.assign(assigned, baechi.plan_of(loaded))
    peaks = []
    for model in (loaded, assigned):
        if model is loaded and not inside:
            baechi.load(model, tmp_path)
        with cluster:
            if model is loaded and inside:
                baechi.load(model, tmp_path)
            for _ in range(2):  # in the first step what loading needed besides may still be there
                step(model, ARCHITECTURES["t5"].inputs(), training=False)
            peaks.append(baechi.last_step(model).peak_bytes)
    assert peaks[0] == peaks[1]


class Counted:
    """A safetensors file that counts how many tensors it gave out that are still held.

    Args:
        opened: the file.
        most: appended to: how many were held when one more was given out.
    """

    alive: int

    def __init__(self, opened: Any, most: list[int]) -> None:
        self._opened, self._most = opened, most

    def __enter__(self) -> "Counted":
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def keys(self) -> list[str]:
        names: list[str] = self._opened.keys()
        return names

    def get_slice(self, name: str) -> Any:
        return self._opened.get_slice(name)

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._opened.get_tensor(name)
        self._most.append(Counted.alive)
        Counted.alive += 1
        weakref.finalize(tensor.untyped_storage(), self._gone)
        return tensor

    @staticmethod
    def _gone() -> None:
        Counted.alive -= 1


def test_one_tensor_on_the_host_at_a_time(saved: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """When a tensor is read, the one before it is gone."""
    name, folder = saved
    model = built_on_meta(name)
    planned(model, name, "random:0", training=False)
    most: list[int] = []
    Counted.alive = 0
    monkeypatch.setattr(checkpoint, "safe_open", lambda *args, **kw: Counted(safe_open(*args, **kw), most))
    baechi.load(model, folder)
    names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert most == [0] * len(names)
    assert Counted.alive == 0


class Norms(nn.Module):
    """Layers with buffers of both kinds, a tie, and a view of another weight."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 4)
        self.third = nn.Linear(4, width)
        self.third.weight = self.first.weight
        self.part = nn.Linear(width, 2, bias=False)
        self.part.weight = nn.Parameter(self.second.weight.detach()[:2])
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.first(x)) + self.third(x)
        return self.second(hidden) * self.scale, self.part(hidden)


def norms() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Norms()
        model(torch.randn(8, 4))
    return model.eval()


def norms_on_meta(width: int = 4) -> nn.Module:
    with torch.device("meta"):
        model = Norms(width).eval()
    model.scale = torch.full((4,), 2.0)
    return model


def x() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def written(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda state: None) -> Path:
    """The checkpoint of `norms`, without the second names of what is shared."""
    state = {name: value.clone() for name, value in norms().state_dict().items()}
    del state["third.weight"], state["part.weight"]
    change(state)
    save_file(state, folder / "model.safetensors")
    return folder / "model.safetensors"


def spread(model: nn.Module) -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(3)
    return baechi.distribute(model, x(), cluster=cluster, placer="random:0") and cluster


def same_as_norms(model: nn.Module) -> bool:
    return all(identical(a, b) for a, b in zip(model(x()), norms()(x()), strict=True))


def test_buffers_ties_and_views(tmp_path: Path) -> None:
    """Buffers are loaded; what shared memory on `meta` shares it on the device."""
    model = norms_on_meta()
    cluster = spread(model)
    baechi.load(model, written(tmp_path))
    with cluster:
        assert same_as_norms(model)
    assert model.third.weight is model.first.weight
    assert model.part.weight.untyped_storage() is model.second.weight.untyped_storage()
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())


def test_parameters_alone_on_meta(tmp_path: Path) -> None:
    """Under accelerate's `init_empty_weights` buffers keep their values, whatever kind they are."""
    with init_empty_weights():
        model = Norms().eval()
    spread(model)
    baechi.load(model, written(tmp_path, with_the_view))  # accelerate copies views one by one
    assert same_as_norms(model)


def test_on_one_device(tmp_path: Path) -> None:
    """A plan on one device is loaded as well, and refused before that."""
    model = norms_on_meta()
    baechi.distribute(model, x(), cluster=baechi.Cluster.virtual(1))
    with pytest.raises(BaechiError, match=r"no values: first\.weight, .* and \d+ more; load them"):
        model(x())
    baechi.load(model, written(tmp_path))
    assert same_as_norms(model)


def test_parameters_that_are_there_are_written(tmp_path: Path) -> None:
    """A distributed model that has weights gets others, and its optimizer goes on."""
    model = norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cluster = spread(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    path = written(tmp_path)
    for emulated in (False, True):
        if emulated:
            with cluster:
                baechi.load(model, path)
                assert same_as_norms(model)
        else:
            baechi.load(model, path)
            assert same_as_norms(model)
        model(x())[0].sum().backward()
        optimizer.step()
        assert not same_as_norms(model)


def test_casts_floating_point(tmp_path: Path) -> None:
    """What is in half precision in the file has the model's dtype afterwards."""

    def halve(state: dict[str, Any]) -> None:
        state["first.weight"] = state["first.weight"].bfloat16()

    model = norms_on_meta()
    spread(model)
    baechi.load(model, written(tmp_path, halve))
    assert identical(model.first.weight.data, norms().first.weight.bfloat16().float())


def change_all(state: dict[str, Any]) -> None:
    del state["second.bias"], state["norm.running_mean"]
    state["head.weight"] = torch.zeros(2)
    state["norm.num_batches_tracked"] = torch.zeros(())
    state["first.bias"] = torch.zeros(5)


def test_what_does_not_match_is_listed(tmp_path: Path) -> None:
    """Everything that is missing, unexpected, of another shape or dtype is said; nothing is loaded."""
    model = norms_on_meta()
    spread(model)
    path = written(tmp_path, change_all)
    for strict in (True, False):
        with pytest.raises(CheckpointError, match="does not match this Norms") as caught:
            baechi.load(model, path, strict=strict)
        assert (
            caught.value.faults
            == (
                "first.bias is (5,) in the checkpoint, (4,) in the model",
                "norm.num_batches_tracked is torch.float32 in the checkpoint, torch.int64 in the model: "
                "that is no mere cast",
                "not in the checkpoint: second.bias, norm.running_mean",
                "not in the model: head.weight",
            )[: 4 if strict else None]
        )
    assert all(parameter.is_meta for parameter in model.parameters())


def drop_and_add(state: dict[str, Any]) -> None:
    del state["second.bias"]
    state["head.weight"] = torch.zeros(2)


def test_not_strict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without `strict` the rest is loaded and logged; what is still on `meta` is refused by name."""
    model = norms_on_meta()
    spread(model)
    path = written(tmp_path, drop_and_add)
    with pytest.raises(CheckpointError, match="strict=False loads what matches"):
        baechi.load(model, path)
    with caplog.at_level(logging.WARNING):
        baechi.load(model, path, strict=False)
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        "not in the checkpoint: second.bias",
        "not in the model: head.weight",
    ]
    with pytest.raises(BaechiError, match=r"no values: second\.bias; load them"):
        model(x())
    assert identical(model.first(x()), norms().first(x()))  # a part of which all is there runs
    baechi.load(model, written(tmp_path))
    assert same_as_norms(model)


def test_buffers_that_no_checkpoint_has(tmp_path: Path) -> None:
    """Buffers on `meta` that are not persistent are named, with what to do; real ones stay as they are."""
    with torch.device("meta"):
        model = Norms().eval()
    spread(model)
    with pytest.raises(CheckpointError, match="give such buffers their values before") as caught:
        baechi.load(model, written(tmp_path))
    assert caught.value.faults == (
        "on meta, and in no checkpoint, since these buffers are not persistent: scale",
    )


def test_weights_given_in_another_way() -> None:
    """What `load_state_dict(assign=True)` puts in the place of weights on `meta` goes to their devices."""
    model = norms_on_meta()
    cluster = spread(model)
    model.load_state_dict(norms().state_dict(), assign=True)
    with cluster:
        assert same_as_norms(model)


def with_the_view(state: dict[str, Any]) -> None:
    state["part.weight"] = state["second.weight"][:2].clone()


def test_copies_and_restore(tmp_path: Path) -> None:
    """A copy of a model on `meta` is loaded by itself; `restore` leaves weights on `meta` there."""
    model = norms_on_meta()
    spread(model)
    copied = copy.deepcopy(model)
    baechi.load(copied, written(tmp_path, with_the_view))  # torch copies views one by one
    assert same_as_norms(copied)
    baechi.restore(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu").load_state_dict(norms().state_dict())
    model.scale.fill_(2)
    assert same_as_norms(model)


def test_a_wider_model(tmp_path: Path) -> None:
    """Many faults are cut short, by number."""
    model = norms_on_meta(width=5)
    spread(model)
    with pytest.raises(CheckpointError, match=r"first\.weight is \(4, 4\) in the checkpoint, \(5, 4\)"):
        baechi.load(model, written(tmp_path))


def broken(folder: Path) -> Iterator[tuple[Path, type[Exception], str]]:
    """Paths without a checkpoint, and what is said of each."""
    yield folder / "nowhere", FileNotFoundError, "no checkpoint at"
    yield folder, CheckpointError, "neither"
    text = folder / "a.safetensors"
    text.write_text("not a checkpoint")
    yield text, CheckpointError, "is no safetensors file"
    written(folder)
    yield folder, CheckpointError, r"several checkpoints \(a.safetensors, model.safetensors\)"
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    yield folder, CheckpointError, "no table of files"
    index.write_text(json.dumps({"weight_map": {"first.weight": "b.safetensors"}}))
    yield folder, CheckpointError, "not there\n.*b.safetensors"
    index.write_text(json.dumps({"weight_map": {"head.weight": "model.safetensors"}}))
    yield index, CheckpointError, "head.weight is to be in model.safetensors"


def test_no_checkpoint(tmp_path: Path) -> None:
    """Files that are no checkpoint are named."""
    model = norms_on_meta()
    spread(model)
    for path, error, text in broken(tmp_path):
        with pytest.raises(error, match=text):
            baechi.load(model, path)


def test_only_distributed_models(tmp_path: Path) -> None:
    """A plain model, and one that is planned at its first call, cannot be loaded this way."""
    path = written(tmp_path)
    with pytest.raises(BaechiError, match="is not distributed"):
        baechi.load(norms(), path)
    with pytest.raises(BaechiError, match="planned at its first call"):
        baechi.load(baechi.distribute(norms_on_meta(), cluster=baechi.Cluster.virtual(2)), path)
