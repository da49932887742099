"""Every architecture as programs, beside a loop over its parts.

    PYTHONPATH=tests:. python -m run.programs.sweep [names]

Each runs three AdamW steps in one microbatch, in four and in eight, each time with another order and number
of devices, in double precision. Losses, gradients, weights and buffers are those of the loop.
"""

import copy
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from architectures import HELD_IN, OTHERS, OWN, Architecture, loss_of
from architectures.strangers import STRANGERS
from run.pipeline.by_loop import SEED, WithLoss, assert_same_gradients, batch_of, loop
from torch import Tensor, nn

import baechi
from baechi.run import runtime_of

EVERY: tuple[Architecture, ...] = (*OWN, *HELD_IN, *OTHERS, *STRANGERS)
ORDERS = ("auto", "gpipe", "1f1b", "interleaved")
MICROBATCHES = (1, 4, 8)
ROWS, STEPS = 9, 3


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
        kind: `"programs"`; `"as written"`: no programs ran, and numbers are right; `"refused"`; `"wrong"`;
            `"neither"`: it does not run without programs either.
        why: a reason, or what differs.
    """

    kind: str
    why: str = ""


def case(number: int, microbatches: int) -> dict[str, Any]:
    """How an architecture runs with so many microbatches."""
    turn = number + MICROBATCHES.index(microbatches)
    return {"order": ORDERS[turn % 4], "devices": 2 + turn % 3, "placer": f"random:{number}"}


def outcome(architecture: Architecture, microbatches: int, how: dict[str, Any]) -> Outcome:
    """Run an architecture as programs."""
    exact = baechi.Stages(backend="aot_eager", limit=8, required=True)
    try:
        return _run(architecture, microbatches, how, exact)
    except baechi.CompileError as error:
        return Outcome("refused", str(error))
    except AssertionError as error:
        return Outcome("wrong", str(error).strip() or "an assertion")
    except Exception as error:  # whatever a model raises is told, and compared with what it does by itself
        try:
            _run(architecture, microbatches, how, None)
        except Exception:
            return Outcome("neither", f"{type(error).__name__}: {error}")
        return Outcome("wrong", f"{type(error).__name__}: {error}")


def _run(
    architecture: Architecture, microbatches: int, how: dict[str, Any], compile: baechi.Stages | None
) -> Outcome:
    built = architecture.build()
    if hasattr(built, "set_experts_implementation"):  # torch's grouped product takes no doubles
        with suppress(ValueError):  # no experts
            built.set_experts_implementation("batched_mm")
    model = WithLoss(built, loss_of).train().double()
    inputs = batch_of(architecture.inputs(), ROWS)
    plain = copy.deepcopy(model)
    _distributed(model, inputs, microbatches, how, compile)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (plain, model)]
    for _ in range(STEPS):
        for one in optimizers:
            one.zero_grad()
        expected = _expected(plain, inputs, microbatches)
        torch.manual_seed(SEED)
        loss = model(**inputs)
        loss.backward()
        assert torch.allclose(loss.detach().double(), expected, rtol=1e-12, atol=0), (loss, expected)
        assert_same_gradients(model, plain)
        for one in optimizers:
            one.step()
    for name, weight in model.named_parameters():
        assert torch.allclose(weight, plain.get_parameter(name), rtol=0, atol=1e-9), name
    for (name, buffer), other in zip(model.named_buffers(), plain.buffers(), strict=True):
        one, two = buffer.double(), other.double()  # some are masks
        apart = f"{name}: {float((one - two).abs().max())} of {float(two.abs().max())}"
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12, equal_nan=True), apart
    return Outcome("programs" if runtime_of(model).counts.get("programs") else "as written")


def _distributed(
    model: nn.Module, inputs: Any, microbatches: int, how: dict[str, Any], compile: baechi.Stages | None
) -> None:
    cluster = baechi.Cluster.virtual(how["devices"])
    split: dict[str, Any] = {"microbatches": microbatches} if microbatches > 1 else {}
    graph = baechi.profile(model, inputs, cluster=cluster, training=True, source="estimate", **split)
    plan = baechi.place(graph, cluster, how["placer"])
    if microbatches == 1:
        baechi.distribute(model, plan=plan, compile=compile)
        return
    pipeline = baechi.pipeline(plan, microbatches, how["order"])
    baechi.distribute(model, plan=pipeline, loss_weights="rows", coupled="accept", compile=compile)


def _expected(plain: nn.Module, inputs: Any, microbatches: int) -> Tensor:
    if microbatches > 1:
        return loop(plain, inputs, microbatches)
    torch.manual_seed(SEED)
    loss: Tensor = plain(**inputs)
    loss.backward()
    return loss.detach().double()


def rows(names: Sequence[str]) -> Iterator[str]:
    """A line for each architecture and number of microbatches."""
    for number, architecture in enumerate(EVERY):
        if names and architecture.name not in names:
            continue
        for microbatches in MICROBATCHES:
            begun_s, how = time.process_time(), case(number, microbatches)
            found = outcome(architecture, microbatches, how)
            torch.compiler.reset()
            where, taken_s = f"{how['order']} on {how['devices']}", time.process_time() - begun_s
            line = f"{number:3} {architecture.name:24} m={microbatches} {found.kind:10} {taken_s:5.1f} s"
            yield f"{line}  {where}  {' '.join(found.why.split())[:300]}"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for row in rows(sys.argv[1:]):
        print(row, flush=True)
