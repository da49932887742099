"""What is around a call that launches later than the code reached it."""

from typing import Any

from baechi.run.state.caller_state import CallerState
from baechi.run.state.contents import Contents
from baechi.run.steady.call_contents import KnownContents


class Around:
    """While a call launches: its caller's settings are restored, and the contents that it reaches.

    Args:
        caller: the settings.
        contents: what it reaches.
        name: the layer or function.
    """

    __slots__ = ("_caller", "_contents")

    def __init__(self, caller: CallerState, contents: Contents | KnownContents, name: str) -> None:
        self._caller, self._contents = caller.restored(), contents.restored(name)

    def __enter__(self) -> None:
        self._caller.__enter__()
        try:
            self._contents.__enter__()
        except BaseException as error:
            self._caller.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, *raised: Any) -> None:
        try:
            self._contents.__exit__(*raised)
        except BaseException as error:
            self._caller.__exit__(type(error), error, error.__traceback__)
            raise
        self._caller.__exit__(*raised)
