"""Weights and what is done with them: copies, averages, files, parametrizations, freezing."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures.base import seeded
from run.drop_in.chain import chain, spread, values
from run.every_way import Rig, Way, assert_equal, batch, every_way, left_by, rig, same
from safetensors.torch import load_file, load_model, save_model
from same import identical
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import baechi


def train(model: nn.Module, steps: int = 2, each: Callable[[], Any] = lambda: None) -> list[Tensor]:
    """Steps with momentum; what the model returned in each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outs = []
    for seed in range(steps):
        optimizer.zero_grad()
        out = model(batch(seed=seed))
        out.pow(2).mean().backward()
        optimizer.step()
        each()
        outs.append(out.detach())
    return outs


def pickled(model: nn.Module) -> nn.Module:
    """A copy by way of a pickle."""
    copied: nn.Module = pickle.loads(pickle.dumps(model))
    return copied


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
@every_way
def test_copies(way: Way, duplicate: Callable[[nn.Module], nn.Module]) -> None:
    """A copy of a model that was trained is trained on, and neither changes the other."""

    def run(model: nn.Module) -> Any:
        before = train(model)
        copied = duplicate(model)
        return before, train(copied), left_by(copied), train(model)

    same(way, run)


@pytest.mark.parametrize("buffers", [True, False], ids=["with buffers", "without buffers"])
@every_way
def test_averages(way: Way, buffers: bool) -> None:
    """An exponential moving average by torch, called itself, its statistics made anew."""

    def run(model: nn.Module) -> Any:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
        outs = train(model, each=lambda: average.update_parameters(model))
        out = average(batch()).detach()
        update_bn([batch(seed=seed) for seed in range(2)], average)
        return outs, out, average.eval()(batch()).detach(), left_by(average)

    same(way, run)


@every_way
def test_an_average_by_hand(way: Way) -> None:
    """A teacher that is a deep copy, follows by `lerp_`, and lends its buffers."""

    def run(model: nn.Module) -> Any:
        teacher = copy.deepcopy(model).requires_grad_(False)

        @torch.no_grad()
        def follow() -> None:
            for mine, yours in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(yours, 0.5)
            for mine, yours in zip(teacher.buffers(), model.buffers(), strict=True):
                mine.copy_(yours)

        outs = train(model, each=follow)
        return outs, teacher(batch()), left_by(teacher)

    same(way, run)


def other_weights() -> dict[str, Tensor]:
    """A state dict of another model of the class, on the host."""
    with torch.random.fork_rng():
        torch.manual_seed(9)
        return {name: tensor.clone() for name, tensor in Rig().state_dict().items()}


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@every_way
def test_load_state_dict(way: Way, assign: bool) -> None:
    """Weights from the host, copied into those that are there, or put in their place."""

    def run(model: nn.Module) -> Any:
        train(model)
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict({"head.bias": torch.zeros(3)})
        missing = model.load_state_dict({"head.bias": torch.ones(3)}, strict=False, assign=assign)[0]
        first = train(model)
        assert not any(model.load_state_dict(other_weights(), assign=assign))
        return len(missing), first, train(model)

    same(way, run)


@every_way
def test_load_state_dict_of_a_part(way: Way) -> None:
    """Weights of a part and of a layer, put in the place of those that are there."""

    def run(model: Any) -> Any:
        weights = other_weights()
        for name in ("first.left", "second", "head"):
            found = {key.removeprefix(f"{name}."): w for key, w in weights.items() if key.startswith(name)}
            model.get_submodule(name).load_state_dict(found, assign=True)
        return train(model)

    same(way, run)


@every_way
def test_state_dicts_through_files(way: Way) -> None:
    """Model and optimizer, saved by `torch.save` in the middle of training, and loaded."""

    def saved(state: Any) -> Any:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file)

    def run(model: nn.Module) -> Any:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(batch()).sum().backward()
        optimizer.step()
        state, moments = saved(model.state_dict()), saved(optimizer.state_dict())
        train(model)  # what is to be forgotten
        model.load_state_dict(state)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer.load_state_dict(moments)
        optimizer.zero_grad()
        model(batch()).sum().backward()
        optimizer.step()

    same(way, run)


@every_way
def test_safetensors(way: Way, tmp_path: Path) -> None:
    """`save_model` writes what the plain model would, and `load_model` reads it back."""
    path = tmp_path / "model.safetensors"

    def run(model: nn.Module) -> Any:
        train(model)
        save_model(model, str(path))
        written = {name: tensor.clone() for name, tensor in sorted(load_file(path).items())}
        train(model)  # what is to be forgotten
        assert not any(load_model(model, str(path)))
        return written, train(model)

    same(way, run)


class Scaled(nn.Module):
    """A parametrization with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale.tanh()


class Parametrized(Rig):
    """Weights that are computed: normalized by length, by their spectrum, and by one of our own."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.enter)
        parametrizations.spectral_norm(self.mix)
        parametrizations.orthogonal(self.first.right[0])
        parametrize.register_parametrization(self.first.left[0], "weight", Scaled())
        parametrize.register_parametrization(self.head, "bias", Scaled())
        nn.utils.spectral_norm(self.second.left[0])  # the older kind, by hooks
        nn.utils.weight_norm(self.second.right[0])


parametrized = seeded(Parametrized)


@every_way
def test_parametrizations(way: Way) -> None:
    """Parametrizations of torch and of one's own, of the newer kind and of the older, and cached."""

    def run(model: nn.Module) -> Any:
        outs = train(model)
        with parametrize.cached():
            outs += train(model, steps=1)
        return outs, model.eval()(batch()).detach()

    same(way, run, build=parametrized, waits=False)  # a layer that changed its parametrizations may not wait


@every_way
def test_parametrizations_that_come_and_go(way: Way) -> None:
    """Weights that are parametrized after `distribute`, and are weights again later."""

    def run(model: Any) -> Any:
        parametrizations.weight_norm(model.enter)
        parametrize.register_parametrization(model.head, "weight", Scaled().to(model.head.weight.device))
        outs = train(model)
        parametrize.remove_parametrizations(model.head, "weight")
        parametrize.remove_parametrizations(model.enter, "weight")
        return outs, train(model)

    same(way, run)


@every_way
def test_frozen_parts(way: Way) -> None:
    """Parts that are frozen, and trained again, between steps."""

    def run(model: Any) -> Any:
        model.first.requires_grad_(False)
        outs = train(model)
        assert model.enter.weight.grad is not None and model.first.left[0].weight.grad is None
        model.enter.requires_grad_(False)
        model.side.requires_grad_(False)
        outs += train(model)
        model.requires_grad_(True)
        return outs + train(model)

    same(way, run)


class Frozen(Rig):
    """Some of its weights are frozen from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.second.requires_grad_(False)
        self.mix.requires_grad_(False)


frozen = seeded(Frozen)


@every_way
def test_frozen_when_planned(way: Way) -> None:
    """Parts that are frozen when the model is distributed, and trained later."""

    def run(model: nn.Module) -> Any:
        outs = train(model)
        model.requires_grad_(True)
        return outs + train(model)

    same(way, run, build=frozen)


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@every_way
def test_casts(way: Way, inside: bool) -> None:
    """`double()` and `to(dtype)`, of the model and of a part, inside of `with` or before it."""

    def cast(model: Any) -> None:
        model.side.half().float()
        model.to(torch.float64)

    plain, (model, cluster) = rig(), way.distribute(rig, batch)
    cast(plain)
    if not inside:
        cast(model)
    with cluster:
        if inside:
            cast(model)
        outs = [each(batch().double()) for each in (plain, model)]
        for out in outs:
            out.pow(2).sum().backward()
    assert_equal((outs[0].detach(), left_by(plain)), (outs[1].detach(), left_by(model)))


@pytest.mark.parametrize("part", ["", "b"], ids=["model", "layer"])
def test_weights_put_in_the_place_of_others_stayed_where_they_were_read_to(part: str) -> None:
    """`load_state_dict(assign=True)` left the weights on the host, and the next call failed."""
    plain, model = chain(), chain()
    cluster = spread(model)
    with cluster:
        for each in (plain, model):
            loaded = each.get_submodule(part)
            loaded.load_state_dict(
                {k: torch.ones(v.shape) for k, v in loaded.state_dict().items()}, assign=True
            )
        assert identical(plain(values()), model(values()))
        assert str(model.get_submodule("b").weight.device) == "cpu:1"
    baechi.restore(model)
    assert not any(module._load_state_dict_post_hooks for module in model.modules())


def test_casts_outside_lost_the_places_of_weights() -> None:
    """Outside of `with`, `model.double()` makes new memory, which no mark says where it lies."""
    plain, model = chain(), chain()
    cluster = spread(model)
    for each in (plain, model):
        each.double()
    with cluster:
        assert identical(plain(values().double()), model(values().double()))
