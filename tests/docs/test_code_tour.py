"""The code tour is true: a run enters the functions that they name, in their order."""

import ast
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from docs.pages import ROOT, page
from torch import Tensor, nn

import baechi

PACKAGE = ROOT / "baechi"
NAMED = re.compile(r"`((?:\w+/)+\w+\.py)` `([\w.]+)`")

Entered = list[tuple[str, str]]


class Branches(nn.Module):
    """Two branches, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        return self.head(torch.cat([self.first(left), self.second(right)], -1)).sum()


def tables() -> list[list[tuple[str, str]]]:
    """By table of the page whose rows are numbered: file and function that each row names first."""
    found: list[list[tuple[str, str]]] = []
    for line in page("docs/code-tour.md").splitlines():
        number = re.match(r"\| (\d+) \|", line)
        named = NAMED.search(line)
        if number is not None and number[1] == "1":
            found.append([])
        if number is not None and named is not None:
            found[-1].append((named[1], named[2]))
    return found


def entered(run: Callable[[], Any]) -> Entered:
    """File and qualified name of each function of the package that a call enters, in order."""
    calls: Entered = []
    prefix = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            calls.append((frame.f_code.co_filename.removeprefix(prefix), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def check(walk: list[tuple[str, str]], calls: Entered) -> None:
    """The walk's functions are entered one after the other; a class by any of its methods."""
    rest = iter(calls)
    for file, name in walk:
        assert any(there == file and (own == name or own.startswith(f"{name}.")) for there, own in rest), (
            f"{file} {name} is not entered there"
        )


def names_in(file: str) -> set[str]:
    """Functions, classes, methods (with their class) and constants of a file."""
    found: set[str] = set()
    for node in ast.parse((PACKAGE / file).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_functions_exist() -> None:
    """What stands behind a file is in that file, also in rows that name several."""
    named = NAMED.findall(page("docs/code-tour.md"))
    assert len(named) > 40
    for file, name in named:
        assert name in names_in(file), f"{file} has no {name}"


def test_a_model_through_distribute() -> None:
    """From the user's call to wrapped layers; a device has too little memory for all of it."""
    devices = tuple(baechi.Device(f"cpu:{number}", kind="cpu", memory_bytes=600) for number in range(2))
    cluster = baechi.Cluster(devices, emulated=True)
    model, batch = Branches(), torch.ones(2, 4)
    calls = entered(lambda: baechi.distribute(model, batch, cluster=cluster))
    assert len(baechi.plan_of(model).devices_used) == 2
    check(tables()[0], [call for call in calls if call[1] != "<module>"])


def test_a_step_with_its_transfers() -> None:
    """A call in which layers wait, what travels in it, and the gradients on their way back."""
    model, batch, cluster = Branches(), torch.ones(2, 4), baechi.Cluster.virtual(2)
    baechi.distribute(model, batch, cluster=cluster, placer="random:3", reorder=True)
    _, step, there, back, _ = tables()
    losses: list[Tensor] = []
    with cluster:
        forward = entered(lambda: losses.append(model(batch)))
        backward = entered(losses[0].backward)
    assert baechi.last_step(model).counters["deferred"]
    check(step, forward)
    check(there, forward)
    check(back, backward)


def test_a_step_in_microbatches() -> None:
    """The third call of a model that returns its loss."""
    model, batch = Branches(), torch.ones(4, 4)
    devices = tuple(baechi.Device(f"cpu:{number}", kind="cpu", memory_bytes=2**30) for number in range(2))
    where = {"left": "cpu:0", "right": "cpu:0", "first": "cpu:1", "second": "cpu:1", "head": "cpu:1"}
    cluster = baechi.Cluster(devices, emulated=True)
    baechi.distribute(
        model, batch, cluster=cluster, device_map=where, microbatches=2, order="1f1b", loss_weights="sum"
    )
    for _ in range(2):
        model(batch).backward()
    check(tables()[4], entered(lambda: model(batch).backward()))
