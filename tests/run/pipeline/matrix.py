"""Architectures in microbatches beside a loop over the parts: devices, placements and orders, each with each.

`PYTHONPATH=.:tests python -m run.pipeline.matrix --every 4` runs a fourth of the cells, prints what differs.
"""

import argparse
import copy
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import torch
from architectures import HELD_IN, OTHERS, OWN, loss_of
from architectures.base import Architecture
from run.pipeline.by_loop import WithLoss, assert_as_loop, batch_of, loop

from baechi.errors import BaechiError

ORDERS = ("auto", "gpipe", "1f1b", "interleaved")
PLACERS = ("random:1", "even", "auto")
DEVICES = (2, 3, 4)
ROWS = 5  # two and three microbatches do not divide them


def outcome(architecture: Architecture, devices: int, placer: str, order: str, microbatches: int) -> str:
    """Two steps: `"equal"`, or what was refused or differs."""
    model = WithLoss(architecture.build(), loss_of).train().double()
    inputs = batch_of(architecture.inputs(), ROWS)
    plain = copy.deepcopy(model)
    try:
        loop(plain, inputs, microbatches)
    except (RuntimeError, ValueError) as error:  # such as experts in double precision, BatchNorm of one row
        return f"the plain model raises: {str(error).partition(chr(10))[0]}"
    if not all(bool(w.grad.isfinite().all()) for w in plain.parameters() if w.grad is not None):
        return "the plain model's gradients are not finite"
    try:
        assert_as_loop(model, inputs, microbatches, devices=devices, placer=placer, order=order)
    except BaechiError as error:
        return f"refused: {str(error).partition(chr(10))[0]}"
    except AssertionError as error:
        return f"differs: {str(error).partition(chr(10))[0]}"
    return "equal"


def asked_for(description: str | None, *axes: Iterable[Any]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The cells that the command line asks for, with their numbers; warnings are off from now on."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--every", type=int, default=1, help="one of so many cells")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    cells = list(product((*OWN, *HELD_IN, *OTHERS), DEVICES, PLACERS, ORDERS, *axes))
    yield from [(number, cells[number]) for number in range(asked.first, len(cells), asked.every)]


def main() -> None:
    """Run the cells; print those that are not equal, and a table."""
    outcomes: Counter[str] = Counter()
    for number, (architecture, devices, placer, order) in asked_for(__doc__):
        found = outcome(architecture, devices, placer, order, 2 + number % 2)
        outcomes[found.partition(":")[0]] += 1
        if found != "equal":
            print(architecture.name, devices, placer, order, found, flush=True)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
