"""Random models in microbatches beside a loop over the same parts: two steps; weights are written between.

In the loop, as in lanes, each part begins with the attributes from before the step; what the last one wrote
stays. `PYTHONPATH=.:tests python -m run.pipeline.hunted --count 500` makes a table of many seeds.
"""

import argparse
import copy
import logging
import time
import warnings
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Any

import torch
from hunt import grammar
from hunt.judge import raised
from hunt.leaves import attributes
from hunt.render import builder
from hunt.steps import inputs
from run.pipeline.by_loop import WithLoss, assert_same_gradients
from torch import Tensor, nn

import baechi
from baechi.errors import BaechiError
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.partition import parted
from baechi.run.pipeline.lanes.user_state import attribute_tables
from baechi.torchlib.modules.tables import content_of, differ, refill
from baechi.torchlib.tensors.pytree import tensors_in

PLACERS = ("random", "even", "round-robin", "m-topo")
ORDERS = ("auto", "gpipe", "1f1b", "interleaved")
STEPS = 2

Batch = tuple[Tensor, ...]


def loss_of(result: object) -> Tensor:
    """The mean square of each tensor, added."""
    made = [tensor for tensor in tensors_in(result) if tensor.is_floating_point() and tensor.numel()]
    return torch.stack([tensor.double().square().mean() for tensor in made]).sum()


def loop(model: nn.Module, batch: Batch, microbatches: int, seed: int) -> Tensor:
    """The loss of the batch, part by part; gradients add up."""
    torch.manual_seed(seed)
    seeds = torch.randint(2**62, (microbatches,)).tolist()
    parts = parted(model, Inputs(*batch), microbatches, {})
    losses: list[Tensor] = []
    before = [(table, content_of(table)) for table in attribute_tables(model)]
    for part, rows, own in zip(parts.parts, parts.rows, seeds, strict=True):
        for table, content in before if losses else ():
            if differ(content_of(table), content):
                refill(table, content)
        torch.manual_seed(own)
        loss = model(*part.args) * (rows / sum(parts.rows))
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def outcome(seed: int, *, without: Collection[str] = (), steps: int = STEPS) -> str:
    """Run a seed: `"right"`, or why nothing was compared; what is wrong raises.

    Args:
        seed: a model, a placement and an order.
        without: kinds of statements that are left out.
        steps: how many.
    """
    chance, recipe = Random(seed), grammar.draw(seed, without=without)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = WithLoss(builder(recipe)(), loss_of).double().train()
        batches = [tuple(inputs(recipe, step)) for step in range(steps)]
        microbatches = min(recipe.rows, chance.choice((2, 2, 3)))
        plain = copy.deepcopy(model)
        try:
            expected = [_looped(plain, batch, microbatches, seed) for batch in batches]
        except (RuntimeError, AttributeError, NotImplementedError, TypeError, ValueError):
            return "the plain model raises"
        grads = [weight.grad for _, after in expected for weight in after["gradients"]]
        if not all(bool(grad.isfinite().all()) for grad in grads if grad is not None):
            return "gradients of the plain model overflow"
        cluster = baechi.Cluster.virtual(chance.choice((2, 3, 4)))
        placer, order = chance.choice(PLACERS), chance.choice(ORDERS)
        placer = f"random:{seed}" if placer == "random" else placer
        try:
            graph = baechi.profile(
                model, copies(batches[0]), cluster=cluster, microbatches=microbatches, source="estimate"
            )
            plan = baechi.place(graph, cluster, placer)
            pipeline = baechi.pipeline(plan, microbatches, order)  # type: ignore[arg-type]
            baechi.distribute(model, plan=pipeline, loss_weights="rows", coupled="accept")
            for batch, (loss, after) in zip(batches, expected, strict=True):
                _step(model, cluster, batch, seed, loss, after)
        except baechi.StreamRaceError:
            raise
        except BaechiError as error:
            return f"refused: {error}"
        except RuntimeError as error:
            if any("with baechi.unsplit" in note for note in getattr(error, "__notes__", ())):
                return f"raised with the cure: {error}"
            raise
    return "right"


def _looped(plain: nn.Module, batch: Batch, microbatches: int, seed: int) -> tuple[Tensor, Any]:
    """The loss of a step of the plain model, and what it left; then its weights are written."""
    plain.zero_grad()
    loss = loop(plain, copies(batch), microbatches, seed)
    after = _as_it_is(plain)
    with torch.no_grad():
        for weight in plain.parameters():
            weight.mul_(0.9)
    return loss, after


def _as_it_is(model: nn.Module) -> Any:
    """What a step left: buffers, attributes and gradients."""
    values = {
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
        "attributes": {
            path: leaf.detach().clone() if isinstance(leaf, Tensor) else copy.copy(leaf)
            for path, leaf in attributes(model)
        },
        "gradients": nn.ParameterList([nn.Parameter(one.detach().clone()) for one in model.parameters()]),
    }
    for kept, weight in zip(values["gradients"], model.parameters(), strict=True):
        kept.grad = None if weight.grad is None else weight.grad.clone()
    return values


def _step(
    model: nn.Module, cluster: baechi.Cluster, batch: Batch, seed: int, expected: Tensor, after: Any
) -> None:
    """A step of the distributed model, compared with the loop's; then its weights are written."""
    with cluster:
        model.zero_grad()
        torch.manual_seed(seed)
        loss = model(*copies(batch))
        loss.backward()
    assert torch.allclose(loss.detach(), expected, rtol=1e-9, equal_nan=True), "loss"
    for one, other in zip(model.parameters(), after["gradients"], strict=True):
        if one.grad is None and other.grad is not None:  # autograd went a way on which nothing arrives
            one.grad = torch.zeros_like(one)
    assert_same_gradients(model, after["gradients"], 1e-9)
    left = _as_it_is(model)
    for kind in ("buffers", "attributes"):
        assert list(left[kind]) == list(after[kind]), kind
        for name, value in after[kind].items():
            assert _same(left[kind][name], value), f"{kind}: {name}"
    with cluster, torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.allclose(one, other, rtol=1e-9, equal_nan=True)
    return type(one) is type(other) and bool(one == other)


def copies(batch: Batch) -> Batch:
    """The batch for one run: a model may write its inputs."""
    return tuple(tensor.clone() for tensor in batch)


def main() -> None:
    """Run seeds; print each that is wrong, and a table."""
    parser = argparse.ArgumentParser(prog="hunted", description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to stop")
    asked = parser.parse_args()
    end_s = time.monotonic() + asked.seconds
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    outcomes: Counter[str] = Counter()
    for seed in range(asked.start, asked.start + asked.count):
        if time.monotonic() > end_s:
            break
        try:
            found = outcome(seed)
        except Exception as error:  # whatever it is, it is a finding
            found = "WRONG"
            print(f"seed {seed}: {str(error) or 'assertion'} {raised(error)}", flush=True)
        outcomes[found.split(":")[0]] += 1
    print(f"seeds {asked.start} to {asked.start + outcomes.total() - 1}: {dict(outcomes)}")


if __name__ == "__main__":
    main()
