"""Benches by name, on the command line."""

import pytest
from typer.testing import CliRunner

from benches.__main__ import app
from benches.registry import BENCHES, find


def test_every_bench_is_there() -> None:
    """Each name leads to a function that measures."""
    assert all(callable(find(name)) for name in BENCHES)


@pytest.mark.parametrize(
    ("words", "fault"), [([], "say which bench"), (["placer"], "there is no bench 'placer'")]
)
def test_list(words: list[str], fault: str) -> None:
    """No name, or a misspelt one, is answered with what there is."""
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 2
    assert fault in done.stderr
    assert all(name in done.stderr and what in done.stderr for name, what in BENCHES.items())
