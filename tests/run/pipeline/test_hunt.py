"""Random models in microbatches compute what a loop over the parts does, or say why they do not.

A seed is a model, a placement and an order. The suite runs sixty; more by

    BAECHI_HUNT=2000 python -m pytest tests/run/pipeline/test_hunt.py

and from another seed on with `BAECHI_HUNT_FROM`. In the loop, as in lanes, each part begins with the
attributes from before the step.
"""

import copy
import os
import warnings
from random import Random

import pytest
import torch
from hunt import grammar
from hunt.render import builder
from hunt.steps import inputs
from run.pipeline.by_loop import WithLoss, assert_same_gradients
from torch import Tensor, nn

import baechi
from baechi.errors import BaechiError
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.splitting import parted
from baechi.run.pipeline.lanes.own_state import attribute_tables
from baechi.torchlib.modules.tables import content_of, differ, refill
from baechi.torchlib.tensors.pytree import tensors_in

COUNT = int(os.environ.get("BAECHI_HUNT", "60"))
FROM = int(os.environ.get("BAECHI_HUNT_FROM", "0"))
FOUND = (3371, 4348)
"""What an `autograd.Function` made over several stretches of code was sent before it was there."""

PLACERS = ("random", "even", "round-robin", "m-topo")
ORDERS = ("auto", "gpipe", "1f1b", "interleaved")


def loss_of(result: object) -> Tensor:
    """The mean square of each tensor, added."""
    made = [tensor for tensor in tensors_in(result) if tensor.is_floating_point() and tensor.numel()]
    return torch.stack([tensor.double().square().mean() for tensor in made]).sum()


def loop(model: nn.Module, batch: tuple[Tensor, ...], microbatches: int, seed: int) -> Tensor:
    """The loss of the batch, part by part; gradients add up."""
    torch.manual_seed(seed)
    seeds = torch.randint(2**62, (microbatches,)).tolist()
    parts = parted(model, Inputs(*batch), microbatches, {})
    losses = []
    for part, rows, own in zip(parts.parts, parts.rows, seeds, strict=True):
        before = [(table, content_of(table)) for table in attribute_tables(model)]
        torch.manual_seed(own)
        loss = model(*part.args) * (rows / sum(parts.rows))
        loss.backward()
        losses.append(loss.detach())
        for table, content in before:
            if differ(content_of(table), content):
                refill(table, content)
    return torch.stack(losses).sum()


@pytest.mark.parametrize("seed", [*range(FROM, FROM + COUNT), *FOUND])
def test_as_the_loop(seed: int) -> None:
    """The loss and the gradients; what cannot be kept apart is refused; what torch raises has the cure."""
    chance, recipe = Random(seed), grammar.draw(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = WithLoss(builder(recipe)(), loss_of).double().train()
        batch = tuple(inputs(recipe, 0))
        microbatches = min(len(batch[0]), chance.choice((2, 2, 3)))
        plain = copy.deepcopy(model)
        try:
            expected = loop(plain, copies(batch), microbatches, seed)
        except (RuntimeError, AttributeError, NotImplementedError, TypeError, ValueError):
            pytest.skip("the plain model raises")
        cluster = baechi.Cluster.virtual(chance.choice((2, 3, 4)))
        placer, order = chance.choice(PLACERS), chance.choice(ORDERS)
        placer = f"random:{seed}" if placer == "random" else placer
        try:
            graph = baechi.profile(
                model, copies(batch), cluster=cluster, microbatches=microbatches, source="estimate"
            )
            plan = baechi.place(graph, cluster, placer)
            pipeline = baechi.pipeline(plan, microbatches, order)  # type: ignore[arg-type]
            baechi.distribute(model, plan=pipeline, loss_weights="rows")
            with cluster:
                torch.manual_seed(seed)
                loss = model(*copies(batch))
                loss.backward()
        except baechi.StreamRaceError:
            raise
        except BaechiError as error:
            pytest.skip(f"refused: {error}")
        except RuntimeError as error:
            if any("use microbatches=1" in note for note in getattr(error, "__notes__", ())):
                pytest.skip(f"raised with the cure: {error}")
            raise
    assert torch.allclose(loss.detach(), expected, rtol=1e-9, equal_nan=True)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        if one.grad is None and other.grad is not None:  # autograd went a way on which nothing arrives
            one.grad = torch.zeros_like(one)
    assert_same_gradients(model, plain, 1e-9)


def copies(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The batch for one run: a model may write its inputs."""
    return tuple(tensor.clone() for tensor in batch)
