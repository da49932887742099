"""Steps of small models, timed in turn, and counted by the emulated cluster: how often they do each thing."""

import gc
import logging
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from baechi.backend.virtual import Emulation
from baechi.measure.fit import Step, fitted
from baechi.measure.twins import Twin, small_twins
from baechi.records.cluster import Cluster
from baechi.records.device import TORCH_WORK, HostCosts

LOOP = 20_000
"""Iterations of the empty loop that is timed beside them."""


@dataclass
class Way:
    """A model, ready to run.

    Args:
        name: the model's.
        mode: how it runs.
        run: one step, or one call where the mode has no training.
        judged: whether its 1st, 2nd, 4th, 8th, ... step is judged first, as a step in microbatches is.
        steps: how many ran.
    """

    name: str
    mode: str
    run: Callable[[], object]
    judged: bool = False
    steps: int = 0

    def step(self) -> None:
        """Run a step."""
        self.steps += 1
        self.run()

    def get_ready(self) -> None:
        """Run a step, and more until the next one is not judged."""
        self.step()
        while self.judged and (self.steps + 1) & self.steps == 0:
            self.step()

    def counted(self, taken_s: float, devices: Cluster) -> Step:
        """What a step does how often."""
        with devices:
            emulation: Emulation = devices.emulation
            self.get_ready()
            emulation.charged.clear()
            self.step()
            return Step(taken_s, dict(emulation.charged))


def timed(ways: Sequence[Way], rounds: int, devices: Cluster) -> tuple[list[tuple[Way, Step]], float]:
    """Time ways in turn, and count what each does. The fastest turns count: other work only slows down."""
    taken_s: list[list[float]] = [[] for _ in ways]
    loops_s = []
    with quiet():
        for way in ways:
            way.get_ready()
        for _ in range(rounds):
            loops_s.append(_processor_s(_empty))
            for way, own_s in zip(ways, taken_s, strict=True):
                for _ in range(2):
                    way.get_ready()  # so that the next step finds its code in the caches
                    own_s.append(_processor_s(way.step))
            gc.collect()
        steps = [way.counted(min(own_s), devices) for way, own_s in zip(ways, taken_s, strict=True)]
    return list(zip(ways, steps, strict=True)), median(loops_s)


def with_torch_measured(costs: HostCosts, *, rounds: int) -> HostCosts:
    """Costs with what torch itself takes on this machine, in about a second."""
    ways = [way for twin in small_twins() for way in _plainly(twin)]
    steps, _ = timed(ways, rounds, Cluster.virtual(1))
    guess = HostCosts.usual()
    found = fitted([step for _, step in steps], guess)
    measured = costs.with_seconds({what: found.seconds(what) for what in TORCH_WORK})
    return replace(measured, measured_on=here())


def here() -> str:
    """This machine, its Python and its torch."""
    return f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"


def _plainly(twin: Twin) -> Iterator[Way]:
    """A twin on one device: without recording, and trained by a loop over its weights, and by lists."""
    model, inputs = twin.build(), twin.inputs()
    yield Way(twin.name, "inference", partial(_called, model, inputs))
    for foreach in (False, True):
        optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
        yield Way(twin.name, "training", partial(train, twin, model, inputs, optimizer))


def _called(model: Any, inputs: dict[str, torch.Tensor]) -> object:
    with torch.no_grad():
        return model(**inputs)


def train(twin: Twin, model: Any, inputs: Any, optimizer: torch.optim.Optimizer) -> None:
    """One step of training."""
    optimizer.zero_grad()
    twin.loss(model, inputs).backward()
    optimizer.step()


def _processor_s(run: Callable[[], object]) -> float:
    begun_s = time.process_time()
    run()
    return time.process_time() - begun_s


def _empty() -> None:
    for _ in range(LOOP):
        pass


@contextmanager
def quiet() -> Iterator[None]:
    """Within this context garbage is not collected, and nothing is logged below an error."""
    before, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.WARNING)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        logging.disable(before)
