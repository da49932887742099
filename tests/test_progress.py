"""Progress past one second: a bar on a terminal, a line where it was asked for, else nothing."""

import threading
import time
from io import StringIO

import pytest
from rich.console import Console

from baechi.progress import progress, say, verbosity


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
    """It appears if a second has passed on a terminal; an error passes through."""
    monkeypatch.setattr(threading, "Timer", Now(late))
    printed = StringIO()
    with pytest.raises(KeyError), progress("placing", console=Console(file=printed, force_terminal=terminal)):
        raise KeyError
    assert ("placing" in printed.getvalue()) == (late and terminal)


def test_the_innermost_stage_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line at a time: that of the stage that runs, with its parts counted."""
    monkeypatch.setattr(threading, "Timer", Now(False))
    console = Console(file=StringIO(), force_terminal=True)

    def visible(bar: object) -> list[str]:
        return [task.description for task in bar.tasks if task.visible]  # type: ignore[attr-defined]

    from baechi.progress import _SHOWN

    with progress("trying batches", console=console):
        shown = _SHOWN.get()
        assert shown is not None
        with progress("measuring", 4, console=console) as advance:
            advance()
            assert visible(shown[0]) == ["measuring"] and shown[0].tasks[-1].completed == 1
        assert visible(shown[0]) == ["trying batches"]
    assert _SHOWN.get() is None


@pytest.mark.parametrize("verbose", [True, False, None])
def test_verbosity(
    verbose: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Without a terminal nothing is said unless it is asked for; then one line for each long stage."""
    clock = iter([0.0, 1.5, 2.0, 2.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with verbosity(verbose):
        with verbosity(None), progress("placing", console=Console(stderr=True)):
            pass
        with progress("assigning", console=Console(stderr=True)):
            pass
        say(lambda: "done")
    assert capsys.readouterr().err == ("placing: 1.50 s\ndone\n" if verbose else "")


def test_silence_holds_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called inside of a silent stretch shows nothing on a terminal either."""
    monkeypatch.setattr(threading, "Timer", Now(True))
    printed = StringIO()
    console = Console(file=printed, force_terminal=True)
    with verbosity(False), verbosity(None), progress("placing", console=console):
        pass
    assert printed.getvalue() == ""
