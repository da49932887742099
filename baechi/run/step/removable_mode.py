"""A torch function mode that can be taken off the stack, and put back, at any depth."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch.overrides import TorchFunctionMode

from baechi.torchlib.private.modes import function_mode_count, pop_function_mode, push_function_mode


class RemovableMode(TorchFunctionMode):
    """A function mode that is off while layers run, wherever it stands among other modes."""

    def __exit__(self, *exception: object) -> None:
        """It is off, wherever it stands: a signal's handler may have raised while modes were taken off."""
        self.leave()

    def off(self) -> AbstractContextManager[Any]:
        """Take this mode off the stack now, at any depth, until the context that is returned is left.

        Torch's fast paths are off while any function mode is on. So a mode that stays on without effect
        would still change what a layer computes.
        """
        context = ExitStack()  # no generator: interrupted, the mode might come back after the step
        context.callback(self.come_back, self.leave())
        return context

    def come_back(self, depth: int | None) -> None:
        """Put this mode on the stack again."""
        if depth == 0:
            push_function_mode(self)
        elif depth is not None:
            _push_below(self, depth)

    def leave(self) -> int | None:
        """Take this mode off the stack for good."""
        if not function_mode_count():
            return None
        top = pop_function_mode()
        if top is self:
            return 0
        push_function_mode(top)
        above: list[Any] = []
        found = False
        while function_mode_count() and not found:
            mode = pop_function_mode()
            found = mode is self
            if not found:
                above.append(mode)
        for mode in reversed(above):
            push_function_mode(mode)
        return len(above) if found else None


def _push_below(mode: TorchFunctionMode, depth: int) -> None:
    above = [pop_function_mode() for _ in range(depth)]
    push_function_mode(mode)
    for other in reversed(above):
        push_function_mode(other)
