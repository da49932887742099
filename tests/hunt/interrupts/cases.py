"""Cases by seed: something goes wrong in a step, then the next one is compared with the plain model's."""

import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._functorch.vmap
import torch.utils.checkpoint

import baechi
from baechi.torchlib.private.autograd import are_views_replayed
from baechi.torchlib.private.compiler import compiler_is_imported, compiler_stance
from baechi.torchlib.private.modes import dispatch_modes, dispatch_notes, function_modes

from .interruption import AfterSeconds, AtPoints
from .modes import MODES, TRAP, Broken, World, expected

MANY_S = 30.0
PLACES = ("forward of a", "forward of b", "forward of c", "the code", "compiled code", "the loss", "the data")
BACKWARDS = ("backward of a", "backward of b", "backward of c")
EACH = 25
"""A world serves so many cases; then the model is restored, and distributed again."""


def settings() -> list[Any]:
    """What a step changes in this thread, and in torch, and must leave as it was."""
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        are_views_replayed(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.autograd.Function.__dict__["apply"],
        torch._functorch.vmap._add_batch_dim,
        torch.utils.checkpoint._checkpoint_without_reentrant_generator,
        dispatch_notes(),
        compiler_stance() if compiler_is_imported() else None,
        *dispatch_modes(),
        *function_modes(),
    ]


class Wrong(AssertionError):
    """What a case found, and how it came about."""


class Hunt:
    """Cases of one mode.

    Args:
        mode: one of `MODES`.

    Attributes:
        outcomes: how often cases ended how.
    """

    def __init__(self, mode: str) -> None:
        self.mode, self.outcomes = mode, Counter[str]()
        self.expected = expected()
        self.before = settings()
        self.threads = set(threading.enumerate())
        self.world: World | None = None
        self.left = 0
        self.points, self.step_s = 0, 0.0
        self.base: dict[str, int] = {}
        self.held: BaseException | None = None

    def case(self, seed: int, *, interrupts: bool) -> None:
        """One case.

        Args:
            seed: which.
            interrupts: whether it is an interrupt, or else an exception.

        Raises:
            Wrong: something is not as it must be.
        """
        rng = random.Random(f"{seed} {interrupts}")
        if self.left == 0:
            self._renew(rng)
        self.left -= 1
        TRAP.made.clear()
        assert self.world is not None
        self.world.change(2.0)
        told = (self._interrupt if interrupts else self._exception)(rng)
        try:
            self.world.change(0.5)
            self._check()
        except Exception as error:
            self.held, self.world, self.left = None, None, 0
            raise Wrong(f"{self.mode}, seed {seed}: {type(error).__name__} {error}, after {told}") from error

    def _renew(self, rng: random.Random) -> None:
        if self.world is not None and self.mode != "dispatched":
            baechi.restore(self.world.model)
            assert self._right(), "restored"
        self.world = world = MODES[self.mode](self.mode, rng)
        self.left = EACH
        cold = rng.random() < 0.5
        if cold and self.points:  # the next case interrupts a first step
            return
        with world.entered():
            world.step()
            begun_s, counting = time.perf_counter(), AtPoints()
            world.step()
            self.step_s = time.perf_counter() - begun_s
            with counting:
                world.step()
            self.points = counting.points

    def _interrupt(self, rng: random.Random) -> str:
        assert self.world is not None
        interruption: Any
        if rng.random() < 0.7:
            at = rng.randint(1, self.points)
            again = (at + rng.randint(1, 60),) if rng.random() < 0.1 else ()
            interruption = AtPoints((at, *again))
        else:
            interruption = AfterSeconds(rng.uniform(0, self.step_s))
        whole = rng.random() < 0.5
        with _dropped() as dropped:
            try:
                if whole:
                    with interruption, self.world.entered():
                        self.world.step()
                else:
                    with self.world.entered(), interruption:
                        self.world.step()
                outcome = "dropped" if dropped else "over"
            except KeyboardInterrupt as error:
                outcome = "interrupted"
                self.held = error if rng.random() < 0.5 else None  # as a notebook holds it
            except Exception as error:
                outcome = f"{type(error).__name__}: {str(error)[:60]}"
        self.outcomes[outcome] += 1
        return f"{outcome} at {interruption.where}"

    def _exception(self, rng: random.Random) -> str:
        assert self.world is not None
        places = [place for place in (*PLACES, *BACKWARDS) if place in TRAP.seen]
        hook = rng.random() < 0.3
        place = "a hook" if hook else rng.choice(places)
        handle = self._hooked(rng) if hook else None
        TRAP.place, TRAP.countdown = place, rng.choice((0, 0, 0, 1, 2))
        TRAP.error = rng.choice((Broken, Broken, KeyboardInterrupt))
        outcome = "over"
        with self.world.entered():
            try:
                self.world.step()
            except (Broken, KeyboardInterrupt) as error:
                outcome = type(error).__name__
                assert str(error) == f"on purpose in {place}"
            TRAP.place = ""
            if handle is not None:
                handle.remove()
            if rng.random() < 0.5:
                self.world.change(0.5)
                assert self._right(), f"the step after {place}, in the same emulation"
                self.world.change(2.0)
        self.outcomes[outcome] += 1
        return f"{outcome} in {place}"

    def _hooked(self, rng: random.Random) -> Any:
        assert self.world is not None
        module = self.world.weights_of.get_submodule(rng.choice(("b", "c", "blocks.0", "head")))
        kind = rng.choice(
            ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook")
        )
        return getattr(module, kind)(lambda *_: TRAP.at("a hook"))

    def _right(self) -> bool:
        """Whether a step gives the loss, and the gradients, of the plain model."""
        assert self.world is not None
        found, right = self.world.step(), self.expected if self.world.learns else self.expected[:1]
        return len(found) == len(right) and all(
            torch.allclose(one, other, rtol=0, atol=1e-14) for one, other in zip(found, right, strict=True)
        )

    def _check(self) -> None:
        world = self.world
        assert world is not None
        now = settings()
        assert now == self.before, f"{now} instead of {self.before}"
        for thread in set(threading.enumerate()) - self.threads:
            if thread.is_alive():  # Python notes one whose start was interrupted; it is none
                thread.join(MANY_S)
            assert not thread.is_alive(), f"{thread} is left"
        with world.entered():
            assert self._right(), "the next step"
            self.held = None
            world.weights_of.zero_grad()
            gc.collect()
            live = world.live_bytes()
        assert settings() == self.before, "the next step leaves settings"
        assert not any(made() is not None for made in TRAP.made), "tensors are alive"
        if self.left == EACH - 1:
            self.base = live
        assert live == self.base, f"{live} bytes instead of {self.base}"


@contextmanager
def _dropped() -> Iterator[list[str]]:
    """Exceptions that Python dropped, since they came in a destructor."""
    dropped: list[str] = []
    hook = sys.unraisablehook

    def note(told: Any) -> None:
        dropped.append(f"{told.exc_value!r} in {told.object!r}")

    sys.unraisablehook = note
    try:
        yield dropped
    finally:
        sys.unraisablehook = hook


def rss_bytes() -> int:
    """What this process holds of the machine's memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
