"""A model of another library, and one batch for it."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from architectures import loss_of
from torch import nn

Batch = dict[str, Any] | tuple[Any, ...]


@dataclass(frozen=True)
class Specimen:
    """One model to try.

    Args:
        package: the one that it is from, as pip names it.
        name: the model's name, the only one so called in its library.
        build: makes the model.
        inputs: makes the batch: positional arguments or keyword arguments.
    """

    package: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Batch]

    def model(self) -> nn.Module:
        """The model, with the same weights at each call."""
        return _seeded(self.build, 0)

    def batch(self) -> Batch:
        """The batch, with the same values at each call."""
        return _seeded(self.inputs, 1)


def _seeded(make: Callable[[], Any], seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


Choice = tuple[Callable[[], nn.Module], Callable[[], Batch]]


def first_that_runs(library: str, name: str, choices: Callable[[], Iterable[Choice]]) -> Specimen:
    """A specimen of the first of several models and batches that runs and can be trained.

    Args:
        library: see `Specimen`.
        name: see `Specimen`.
        choices: what to build, and with which batch; asked when the model is first built.
    """

    @functools.cache
    def chosen() -> Choice:
        failures = []
        for build, inputs in choices():
            try:
                _run(build, inputs)
            except Exception as error:  # others' code may raise anything where sizes do not go together
                failures.append(f"{type(error).__name__}: {error}"[:200])
            else:
                return build, inputs
        raise RuntimeError("; ".join(failures) or "there is nothing to try")

    return Specimen(library, name, lambda: chosen()[0](), lambda: chosen()[1]())


def _run(build: Callable[[], nn.Module], inputs: Callable[[], Batch]) -> None:
    model, batch = _seeded(build, 0).eval(), _seeded(inputs, 1)
    loss_of(model(*batch) if isinstance(batch, tuple) else model(**batch))
