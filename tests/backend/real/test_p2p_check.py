"""Links that change what they carry are found before anything is sent over them."""

import logging
from typing import Any

import pytest
import torch
from architectures import OWN
from backend.real.parts import graph_of, parts
from same import assert_same, step

import baechi
from baechi.backend.real import p2p_check as trust
from baechi.backend.real.copies import Copies

BROKEN = ("cpu/0", "cpu/1")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A machine where one pair copies wrongly; every copy that is made, by its ends."""
    made: list[tuple[str, str]] = []
    right = Copies._copy

    def copy(self: Copies, tensor: torch.Tensor, ends: tuple[str, str], *rest: Any) -> torch.Tensor:
        made.append(ends)
        copied = right(self, tensor, ends, *rest)
        if ends == BROKEN and copied.numel():
            copied.view(-1)[-1] = 0
        return copied

    monkeypatch.setattr(Copies, "_copy", copy)
    monkeypatch.setattr(trust, "_tested", {})
    return made


def test_a_broken_link_is_not_used(copies: list[tuple[str, str]], caplog: pytest.LogCaptureFixture) -> None:
    """Right numbers, through the host; one warning; one test of each pair, whoever asks."""
    architecture = next(row for row in OWN if row.name == "branching")
    reference = step(architecture.build(), architecture.inputs(), training=True)
    plan = baechi.place(graph_of(architecture, training=True), parts(2), "random:0")
    with caplog.at_level(logging.WARNING, "baechi"):
        for _ in range(2):
            model = baechi.assign(architecture.build(), plan)
            for _ in range(2):
                assert_same(reference, step(model, architecture.inputs(), training=True))
    (warning,) = [text for text in caplog.messages if "arrive changed" in text]
    assert "cpu/0 to cpu/1" in warning and "through the host" in warning
    assert copies.count(BROKEN) == 1
    assert copies.count(BROKEN[::-1]) > 1
    assert copies.count(("cpu/0", "cpu")) > 1


def test_without_the_test_numbers_would_be_wrong(
    copies: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it protects from."""
    monkeypatch.setattr(trust, "_arrives", lambda *_: True)
    architecture = next(row for row in OWN if row.name == "branching")
    reference = step(architecture.build(), architecture.inputs(), training=True)
    plan = baechi.place(graph_of(architecture, training=True), parts(2), "random:0")
    model = baechi.assign(architecture.build(), plan)
    with pytest.raises(AssertionError):
        assert_same(reference, step(model, architecture.inputs(), training=True))
    assert BROKEN in copies
