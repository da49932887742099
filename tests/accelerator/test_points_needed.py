"""Each of the points is protected by what was built for it: without that its test fails."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accelerator import ToyMachine
from baechi.backend import sends
from baechi.backend.real.devices import TorchDevices
from baechi.backend.real.one_generator import OneGenerator
from baechi.backend.real.streams import TorchStreams
from baechi.capture.watch import run as capture_run
from baechi.errors import BaechiError
from baechi.run.guards import checkpoint_generators
from baechi.run.weights import move as weights
from baechi.torchlib.tensors import swap_memory

from . import test_points as points

pytestmark = pytest.mark.default_cases(1)


@dataclass(frozen=True)
class Row:
    """What is left out, and the test that fails without it."""

    name: str
    patches: tuple[tuple[Any, str, Any], ...]
    test: Callable[..., None]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def row(name: str, test: Callable[..., None], *arguments: Any, **patched: tuple[Any, Any]) -> Row:
    """A row; patches by name of the attribute, as owner and value."""
    patches = tuple([(owner, attribute, value) for attribute, (owner, value) in patched.items()])
    return Row(name, patches, test, arguments)


def nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""


def in_nothing(*_: Any, **__: Any) -> Any:
    """A context in which nothing is different."""
    return contextlib.nullcontext()


# Not among them: regions of two threads one after the other. Without the lock they draw each other's numbers
# in two runs of three: which thread puts the generators back first decides.
ROWS = [
    row("hooks go along", points.test_hooks_of_weights_stay, False, _end=(swap_memory, nothing)),
    row("old graphs say so", points.test_an_old_graph_says_so, _end=(swap_memory, nothing)),
    row(
        "no weak references",
        points.test_weights_stay_the_same_objects,
        forget_originals=(capture_run, nothing),
    ),
    row(
        "generators inside of a model",
        points.test_checkpointed_regions_draw_what_they_drew,
        False,
        "inside",
        _devices=(checkpoint_generators, lambda: []),
    ),
    row(
        "generators around a model",
        points.test_checkpointed_regions_draw_what_they_drew,
        True,
        "around",
        _devices=(checkpoint_generators, lambda: []),
    ),
    row(
        "generators with arguments on the host",
        points.test_checkpointed_regions_draw_what_they_drew,
        True,
        "from the host",
        _devices=(checkpoint_generators, lambda: []),
    ),
    row(
        "inputs get a mark",
        points.test_an_input_that_is_written_after_it_was_sent,
        False,
        set_mark=(sends, nothing),
    ),
    row(
        "pinned inputs are waited for",
        points.test_a_pinned_input_may_be_used_again,
        reads_later=(TorchDevices, lambda *_: False),
    ),
    row(
        "the current device",
        points.test_a_layer_runs_on_the_current_device,
        False,
        at=(TorchStreams, in_nothing),
    ),
    row(
        "one generator for all devices",
        points.test_what_draws_draws_where_the_code_reaches_it,
        bring=(OneGenerator, nothing),
    ),
    row(
        "parts are recorded",
        points.test_a_replaced_buffer_is_kept_while_a_part_reads_it,
        own=(TorchStreams, nothing),
    ),
    row(
        "threads follow the caller",
        points.test_a_caller_on_side_streams,
        "threads",
        None,
        following=(TorchStreams, lambda self: nothing),
    ),
    row(
        "recomputed layers follow the caller",
        points.test_a_caller_on_side_streams,
        False,
        False,
        callers=(TorchStreams, lambda self: {}),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_is_needed(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails, or the machine finds something."""
    machine = ToyMachine.get()
    machine.restart(seed=1)
    failed = False
    with monkeypatch.context() as patch:
        for owner, attribute, value in row.patches:
            patch.setattr(owner, attribute, value)
        try:
            row.test(machine, *row.arguments)
        except (AssertionError, RuntimeError, BaechiError, pytest.fail.Exception):
            failed = True
        failed = failed or bool(machine.faults())
    machine.restart(late=False)
    assert failed


def test_parallel_models_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look, weights of a DistributedDataParallel would move."""
    machine = ToyMachine.get()
    with monkeypatch.context() as patch, pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        patch.setattr(weights, "_refuse_parallel", nothing)
        points.test_a_parallel_model_made_before_is_refused(machine, tmp_path)
