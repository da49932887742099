"""Find the current line of the user's code."""

import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch
from torch import fx

_OURS = str(Path(__file__).parents[1])
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
"""A line of a traceback that torch writes into a message."""

_TORCH = str(Path(torch.__file__).parent)


def user_line() -> str:
    """The innermost line outside baechi and torch, such as `"model.py:12"`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, _TORCH)):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_of(error: BaseException) -> str:
    """The innermost line outside baechi and torch that an error went through, such as `"model.py:12"`."""
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [f"{Path(file).name}:{line}" for file, line in lines if not file.startswith((_OURS, _TORCH))]
    return own[-1] if own else ""


def line_in(frames: Iterable[traceback.FrameSummary]) -> str:
    """The innermost line outside baechi and torch, such as `"/home/me/model.py:12"`."""
    own = [f"{one.filename}:{one.lineno}" for one in frames if not one.filename.startswith((_OURS, _TORCH))]
    return own[-1] if own else ""


def line_told(text: str) -> str:
    """The innermost such line of those that a text tells as a traceback does."""
    return line_in([traceback.FrameSummary(file, int(line), "") for file, line in _FRAME.findall(text)])


def line_where_made(node: fx.Node) -> str:
    """The innermost such line of those where an operation of a graph was captured."""
    return line_told(node.meta.get("stack_trace") or "")
