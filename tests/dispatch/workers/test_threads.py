"""When a thread begins its chunks: with all that it may have, and before the caller waits for more."""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import baechi
from baechi import SimpleScheduler


class Telling(nn.Module):
    """Tells when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.called.set()
        return x + 1


class Watching(SimpleScheduler):
    """Sees whether the model is called while the second chunk is given out."""

    def __init__(self, called: threading.Event) -> None:
        super().__init__("cpu", 1, capacity=2)
        self.called, self.given, self.early = called, 0, False

    def schedule(self, left: Any) -> Any:
        self.given += 1
        if self.given == 2:
            self.early = self.called.wait(0.2)
        return super().schedule(left)


def test_a_thread_begins_with_all_that_it_may_have() -> None:
    """Else it may bring the first chunk's results before it launches the second, which then travels alone."""
    model = Telling()
    scheduler = Watching(model.called)
    out = baechi.dispatch(model, scheduler, workers="thread")(torch.zeros(3, 2))
    assert torch.equal(out, torch.ones(3, 2))
    assert scheduler.given >= 3 and not scheduler.early


def test_a_thread_begins_before_the_next_input_is_asked_for() -> None:
    model = Telling()
    begun = []

    def inputs() -> Iterator[torch.Tensor]:
        yield torch.zeros(1, 2)
        begun.append(model.called.wait(30))
        yield torch.zeros(1, 2)

    dispatched = baechi.dispatch(model, SimpleScheduler("cpu", 1, capacity=2), workers="thread")
    assert len(list(dispatched.stream(inputs()))) == 2
    assert begun == [True]
