"""What a call raises when chunks fail.

one chunk failed        its own error, with notes of chunk, device and layer
several failed          an AggregateError, in the order of the chunks, not of the time
all refuse the same     that error, once: one that says what cannot be done at all (`FatalError`)
the caller's own part   (the iterator of inputs, joining the results) comes first
"""

from collections.abc import Sequence

import torch

from baechi.errors import AggregateError, FatalError, note

Kinds = tuple[type[BaseException], ...]


def is_recoverable(error: BaseException, kinds: Kinds) -> bool:
    """Whether a call with less work may succeed."""
    said = getattr(error, "recoverable", False)
    return bool(said) or isinstance(error, (*kinds, torch.OutOfMemoryError))


def mark(error: BaseException, kinds: Kinds) -> None:
    """Let an error of any type say whether it is recoverable, as those of baechi do."""
    recoverable = is_recoverable(error, kinds)
    if getattr(error, "recoverable", None) != recoverable:
        try:
            error.recoverable = recoverable  # type: ignore[attr-defined]
        except AttributeError:  # it has slots: its notes must do
            note(error, f"recoverable: {recoverable}")


def failure_of(errors: Sequence[BaseException], chunks: int) -> BaseException:
    """The one error that a call raises."""
    if len(errors) == 1:
        return errors[0]
    for error in errors:
        if not isinstance(error, Exception):  # Ctrl-C, exit: no group of exceptions holds these
            return error
    if all(isinstance(error, FatalError) and str(error) == str(errors[0]) for error in errors):
        return errors[0]
    plain = [error for error in errors if isinstance(error, Exception)]
    return AggregateError(f"{len(errors)} of {chunks} chunks failed", plain)
