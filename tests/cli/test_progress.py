"""A bar past one second, on a terminal only."""

import threading
from io import StringIO

import pytest
from rich.console import Console

from baechi.cli.progress import progress


class Now:
    """A timer whose time has come, or never comes."""

    def __init__(self, comes: bool) -> None:
        self.comes = comes
        self.daemon = False

    def __call__(self, after_s: float, function: object) -> "Now":
        assert after_s == 1.0
        self.function = function
        return self

    def start(self) -> None:
        if self.comes:
            self.function()  # type: ignore[operator]

    def cancel(self) -> None:
        pass

    def join(self) -> None:
        pass


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_a_bar(late: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It appears if a second has passed and somebody looks; an error passes through."""
    monkeypatch.setattr(threading, "Timer", Now(late))
    printed = StringIO()
    with pytest.raises(KeyError), progress("placing", Console(file=printed, force_terminal=terminal)):
        raise KeyError
    assert ("placing" in printed.getvalue()) == (late and terminal)
