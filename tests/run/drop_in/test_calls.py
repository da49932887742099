"""What a caller may do around a call: modes, other inputs, threads, parts alone, checkpointing."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from run.every_way import Rig, Way, assert_equal, batch, every_way, rig, same
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi


def loss_of(model: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A loss on what a model makes of a batch."""
    out = model(x, *args, **kwargs)
    return F.mse_loss(out.float(), torch.ones(out.shape))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with state."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@every_way
def test_without_gradients(way: Way, mode: Callable[[], AbstractContextManager[None]]) -> None:
    """Calls without gradients between calls with them."""

    def run(model: nn.Module) -> Any:
        with mode():
            first = model(batch())
            flags = first.requires_grad, first.is_inference()
        loss_of(model, batch()).backward()
        with mode():
            return flags, first.clone(), model(batch(seed=2)).clone()

    same(way, run)


@pytest.mark.parametrize("scale", [1024.0, 2.0**127], ids=["finite", "overflowing"])
@every_way
def test_autocast(way: Way, scale: float) -> None:
    """Mixed precision with a gradient scaler, also where a step is left out since gradients overflow."""

    def run(model: nn.Module) -> Any:
        optimizer, scaler = momentum(model), torch.amp.GradScaler("cpu", init_scale=scale)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, batch())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return losses, scaler.get_scale()

    same(way, run, waits=False)  # nothing waits under autocast


class Checkpointed(Rig):
    """Runs a part of its layers again in backward."""

    reentrant = False

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: float = 1.0) -> Tensor:
        joined = checkpoint(self.second, self.hidden(x), use_reentrant=self.reentrant)
        out: Tensor = self.head(joined) + self.late(x)
        return out


class Reentrant(Checkpointed):
    """The same, in the older way."""

    reentrant = True


checkpointed, reentrant = seeded(Checkpointed), seeded(Reentrant)


@pytest.mark.parametrize("build", [checkpointed, reentrant], ids=["hooks", "reentrant"])
@every_way
def test_checkpointing(way: Way, build: Callable[[], nn.Module]) -> None:
    """Activation checkpointing of both kinds (that of Hugging Face is in `run/guards`)."""

    def run(model: nn.Module) -> Any:
        x = batch().requires_grad_()
        loss_of(model, x).backward()
        return loss_of(model, x).detach(), x.grad

    same(way, run, build=build)


@every_way
def test_modes_change_between_steps(way: Way) -> None:
    """`train()` and `eval()` of the model and of parts of it, between steps."""

    def run(model: Any) -> Any:
        outs = []
        for change in (model.eval, model.train, model.first.eval, model.second.right.eval, model.train):
            change()
            out = model(batch())
            out.pow(2).sum().backward()
            outs.append(out.detach())
        return outs

    same(way, run)


@every_way
def test_other_batches(way: Way) -> None:
    """Batches of other sizes than the one that the plan was made with, one of them with no row."""

    def run(model: nn.Module) -> Any:
        outs = [loss_of(model, batch(rows, seed=rows)) for rows in (2, 64, 5)]
        outs[-1].backward()
        model.eval()
        return [out.detach() for out in outs], model(batch(1)).detach(), model(batch(0)).detach()

    same(way, run)


def with_shift() -> baechi.Inputs:
    """Positional arguments, all of them."""
    return baechi.Inputs(batch(), noise(5, 8, seed=3), 0.5)


@every_way
def test_other_structures(way: Way) -> None:
    """Keywords instead of positions, and optional inputs left out, or given though the plan had none."""
    shift = noise(5, 8, seed=3)

    def run(model: nn.Module) -> Any:
        outs = [
            model(batch(), shift, 0.5),
            model(scale=0.5, shift=shift, x=batch()),
            model(batch()),
            model(x=batch(), scale=2.0),
            model(batch(), shift=shift),
        ]
        torch.stack(outs[1:3]).sum().backward()
        return [out.detach() for out in outs]

    same(way, run, inputs=with_shift)
    same(way, run)


@every_way
def test_parts_called_alone(way: Way) -> None:
    """Layers and parts called outside of the model, before and after it, with gradients."""

    def run(model: Any) -> Any:
        alone = model.enter(batch()[:, :3])
        alone.sum().backward()
        part = model.first(noise(4, 8))
        out = model(batch())
        (model.head(noise(4, 16)).sum() + part.sum() + out.sum()).backward()
        return alone.detach(), part.detach(), out.detach(), model.late(batch()).detach()

    same(way, run, waits=False)  # the last call is that of a part


class _Positions(nn.Embedding):
    """Is given a shape, and no tensor."""

    def forward(self, shape: torch.Size) -> Tensor:  # type: ignore[override]
        return super().forward(torch.arange(shape[1], device=self.weight.device))


class _Encoder(nn.Module):
    """A part that lies on one device, and reads a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.layer = nn.Embedding(9, 6), _Positions(9, 6), nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.layer(self.words(ids) * self.scale + self.positions(ids.shape))
        return made


class _Both(nn.Module):
    """An encoder, and a head on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = _Encoder(), nn.Linear(6, 9)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(ids))


@pytest.mark.parametrize("split", [None, {"head": 2}])
def test_a_part_on_one_device_alone(split: dict[str, int] | None) -> None:
    """Its own weights, and layers that are given no tensor, lie where its other layers do."""
    model, ids = seeded(_Both)(), torch.arange(8).view(2, 4)
    expected = model.encoder(ids).detach()
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    baechi.distribute(model, (ids,), cluster=cluster, device_map={"encoder": 1, "head": 0}, split=split)
    for around in (cluster, nullcontext()):
        with around:
            found = model.encoder(ids)
            found.sum().backward()
            assert torch.equal(found.detach().cpu(), expected)


@every_way
def test_two_threads(way: Way) -> None:
    """Two threads of the host call one model at once, each with batches of its own, and want gradients."""

    def run(model: nn.Module) -> Any:
        model.eval()
        outs: dict[int, list[Tensor]] = {0: [], 1: []}

        def work(who: int) -> None:
            for seed in range(3):
                x = batch(3 + who, seed=seed).requires_grad_()
                out = model(x)
                outs[who] += [out.detach(), *torch.autograd.grad(out.pow(2).sum(), x)]

        threads = [threading.Thread(target=work, args=(who,)) for who in outs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outs

    model = same(way, run)
    assert_equal(run(rig()), run(model))  # outside, where they really run at once
