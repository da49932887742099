"""Modules that run again in backward: numbers as with torch's checkpoint, and less memory, as predicted."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.torchlib.modules.intercept import is_replaced


class Block(nn.Module):
    """Draws, keeps running statistics, shares a layer with others, and takes an argument by name."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        width = shared.in_features
        self.norm, self.up, self.down = nn.BatchNorm1d(width), nn.Linear(width, 64), nn.Linear(64, width)
        self.drop, self.shared = nn.Dropout(0.2), shared

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        hidden = torch.tanh(self.up(self.norm(x))) ** 2
        return x + self.drop(self.down(hidden.exp())) * scale + self.shared(x)


class Net(nn.Module):
    """Three blocks, the first of which is called twice."""

    def __init__(self, checkpointed: Sequence[str] = ()) -> None:
        super().__init__()
        shared = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Block(shared) for _ in range(3)])
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.tensor(0.5)
        for index in (0, 0, 1, 2):
            block = self.blocks[index]
            if f"blocks.{index}" in self.checkpointed:
                x = checkpoint(block, x, use_reentrant=False, scale=scale)  # type: ignore[assignment]
            else:
                x = block(x, scale=scale)
        return x.float().pow(2).mean()


NAMES = ["blocks.0", "blocks.1", "blocks.2"]
X = torch.linspace(-1, 1, 256 * 8).view(256, 8)
TORN = {"": 0, "blocks.0.up": 1, "blocks.1": 1, "blocks.2": 2, "blocks.2.down": 1}


def build(checkpointed: Sequence[str] = ()) -> Net:
    torch.manual_seed(0)
    return Net(checkpointed)


def step(model: nn.Module, autocast: bool = False) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        loss = model(X)
    loss.backward()
    grads = {name: weight.grad.cpu() for name, weight in model.named_parameters() if weight.grad is not None}
    return loss.item(), grads, {name: buffer.cpu().clone() for name, buffer in model.named_buffers()}


def same(one: Any, other: Any) -> None:
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, grad in one[1].items():
        assert torch.allclose(grad, other[1][name], rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("where", [{"": 0}, TORN], ids=["one", "torn"])
def test_numbers_are_those_of_torchs_checkpoint(where: dict[str, int], autocast: bool) -> None:
    """The same loss and gradients; running statistics count a batch once, as without a checkpoint."""
    cluster, model = baechi.Cluster.virtual(3), build()
    baechi.distribute(model, X, cluster=cluster, device_map=where, recompute="blocks")
    assert list(baechi.plan_of(model).recompute) == NAMES
    with cluster:
        result = step(model, autocast)
    same(step(build(NAMES), autocast), result)
    for name, buffer in step(build(), autocast)[2].items():
        assert torch.equal(buffer, result[2][name]), name


def peaks(recompute: Sequence[str] | None, where: dict[str, int]) -> tuple[dict[str, int], baechi.Plan]:
    """What an emulated step takes, and the plan."""
    cluster, model = baechi.Cluster.virtual(2), build()
    baechi.distribute(model, X, cluster=cluster, device_map=where, recompute=recompute)
    with cluster:
        step(model)
        return dict(baechi.last_step(model).peak_bytes), baechi.plan_of(model)


@pytest.mark.parametrize("where", [{"": 0}, {"": 0, "blocks.2": 1}], ids=["one", "two"])
def test_memory_falls_as_predicted(where: dict[str, int]) -> None:
    """The dry run is exact to a percent; the simulator is never low, and at most 15 % high."""
    before, _ = peaks(None, where)
    after, plan = peaks(NAMES, where)
    simulated = baechi.simulate(plan)
    assert after["cpu:0"] < 0.8 * before["cpu:0"]
    for device in plan.devices_used:
        assert abs(plan.timeline.peak_bytes[device] - after[device]) <= 0.01 * after[device]
        assert 0.999 * after[device] <= simulated.peak_bytes[device] <= 1.15 * after[device]


@pytest.mark.full
def test_a_model_that_fits_no_other_way_trains() -> None:
    """Auto runs as few modules again as needed, none with room, and an error without it tells the cure."""
    before, _ = peaks(None, {"": 0})
    small = baechi.Cluster.virtual(1, memory=int(0.7 * before["cpu:0"]))
    with pytest.raises(baechi.PlacementError, match="recompute='auto'"):
        baechi.distribute(build(), X, cluster=small)
    model = baechi.distribute(build(), X, cluster=small, recompute="auto")
    with small:
        same(step(build()), step(model))
        assert baechi.last_step(model).peak_bytes["cpu:0"] <= small.devices[0].memory_bytes
    assert 0 < len(baechi.plan_of(model).recompute) < 3
    assert "again" in repr(baechi.plan_of(model))
    roomy = baechi.distribute(build(), X, cluster=baechi.Cluster.virtual(1), recompute="auto")
    assert baechi.plan_of(roomy).recompute == ()


def test_a_plan_says_so_in_its_file(tmp_path: Path) -> None:
    """It is applied as it was made; `restore` takes all off again."""
    cluster = baechi.Cluster.virtual(1)
    plan = baechi.place(baechi.profile(build(), X, cluster=cluster), cluster, recompute=["blocks.1"])
    plan.save(tmp_path / "plan.json")
    model = baechi.assign(build(), tmp_path / "plan.json")
    assert baechi.plan_of(model).recompute == ("blocks.1",)
    assert [name for name, module in model.named_modules() if is_replaced(module)] == ["blocks.1"]
    baechi.restore(model)
    assert not any(is_replaced(module) for module in model.modules())


def test_with_microbatches() -> None:
    """Numbers do not change, and each microbatch keeps less."""
    results, kept = [], []
    for recompute in (None, "blocks"):
        cluster, model = baechi.Cluster.virtual(2), build().double()
        where = {"": 0, "blocks.2": 1, "blocks.1": 1}
        baechi.distribute(
            model,
            X.double(),
            cluster=cluster,
            device_map=where,
            recompute=recompute,
            microbatches=4,
            loss_weights="rows",
            order="gpipe",
        )
        with cluster:
            torch.manual_seed(7)
            loss = model(X.double())
            loss.backward()
            kept.append(baechi.last_step(model).peak_bytes)
        grads = [weight.grad.cpu() for weight in model.parameters() if weight.grad is not None]
        results.append((loss.item(), grads, [buffer.cpu() for buffer in model.buffers()]))
    assert results[0][0] == results[1][0]
    for ones, others in zip(results[0][1:], results[1][1:], strict=True):
        assert all(torch.allclose(one, other, rtol=1e-9) for one, other in zip(ones, others, strict=True))
    assert all(kept[1][name] < 0.8 * kept[0][name] for name in kept[0])


@pytest.mark.parametrize("kind", ["parametrized", "hooked"])
def test_spectral_norms_move_once(kind: str) -> None:
    """Their vectors go on in each forward of training, but not where it runs again."""
    norm: Any = nn.utils.parametrizations.spectral_norm if kind == "parametrized" else nn.utils.spectral_norm

    def build() -> nn.Module:
        torch.manual_seed(0)
        blocks = [nn.Sequential(norm(nn.Linear(8, 16)), nn.GELU(), norm(nn.Linear(16, 8))) for _ in range(3)]
        return nn.Sequential(*blocks).double()

    model, plain, x = build(), build(), torch.linspace(-1, 1, 32).reshape(4, 8).double()
    cluster = baechi.Cluster.virtual(1)
    baechi.distribute(model, x, cluster=cluster, recompute=["0", "1"], source="estimate")
    for _ in range(2):
        for network in (model, plain):
            with cluster if network is model else nullcontext():
                network(x).square().mean().backward()
    state = model.state_dict()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(state[name].cpu(), tensor, rtol=1e-12, atol=1e-12, msg=name)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-12, atol=1e-12)


class Writes(nn.Module):
    """Adds to what it is given, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.add_(1))  # type: ignore[no-any-return]


def test_what_cannot_run_again_is_refused() -> None:
    """A name that is none; a module whose arguments are other ones the second time; a plan made before."""
    cluster = baechi.Cluster.virtual(1)
    with pytest.raises(ValueError, match=r"'block'.*blocks\.0"):
        baechi.distribute(build(), X, cluster=cluster, recompute=["block"])
    with pytest.raises(ValueError, match=r"'blocks\.1\.up', which is split.*block around"):
        baechi.distribute(build(), X, cluster=cluster, split={"blocks.1.up": 2}, recompute="blocks.1.up")
    model = nn.Sequential(nn.Linear(8, 8), Writes())
    with pytest.raises(ValueError, match="1 cannot run again"):
        baechi.distribute(model, X, cluster=cluster, recompute="1")
    with pytest.raises(ValueError, match="made before"):
        baechi.distribute(model, X, plan="plan.json", recompute="1")


class Caches(nn.Module):
    """Computes with all that it was ever given; its shape may be that of the last."""

    def __init__(self, same_shape: bool) -> None:
        super().__init__()
        self.layer, self.cache, self.same_shape = nn.Linear(8, 8), list[Tensor](), same_shape

    def forward(self, x: Tensor) -> Tensor:
        made = torch.tanh(self.layer(x))
        self.cache.append(made)
        every = torch.cat(self.cache)
        return (every.view_as(made) if self.same_shape else every).exp()


@pytest.mark.parametrize("same_shape", [False, True])
def test_what_computes_something_else_is_told(same_shape: bool) -> None:
    """By a dry run, before anything trains: torch compares both runs, or the second one raises."""
    model = nn.Sequential(nn.Linear(8, 8), Caches(same_shape))
    with pytest.raises(baechi.PlanError, match="does not compute the same"):
        baechi.distribute(model, X, cluster=baechi.Cluster.virtual(1), recompute="1")


def test_an_error_of_a_second_run_says_so() -> None:
    """Without a dry run the step raises what the module raises, with the cure as a note."""
    model, cluster = nn.Sequential(nn.Linear(8, 8), Caches(True)), baechi.Cluster.virtual(1)
    baechi.distribute(model, X, cluster=cluster, recompute="1", verify=False)
    with cluster, pytest.raises(RuntimeError, match="invalid for input of size") as raised:
        model(X).sum().backward()
    assert any("second run of a Caches" in note for note in raised.value.__notes__)
