"""A tensor that stands for another: its shape, dtype and device are known, and its values are asked for.

Torch functions see it, and are given what it stands for; what works below them cannot be helped, and raises.
"""

from typing import Any, ClassVar

import torch

from baechi.errors import BaechiError
from baechi.torchlib.operators.functions import is_question
from baechi.torchlib.private.modes import without_subclass_function


class AbstractPlaceholder(torch.Tensor):
    """A tensor that stands for another.

    Attributes:
        unseen: what it is, and what to do where it reached an operator as it is; for the error.
    """

    unseen: ClassVar[tuple[str, str]]

    @classmethod
    def resolved(cls, values: Any, reason: str) -> Any:
        """Values with what placeholders stand for in their place."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # reached only where no function mode is on: a step's comes first
        if is_question(func):
            with without_subclass_function():
                return func(*args, **(kwargs or {}))
        args, kwargs = cls.resolved((args, kwargs or {}), getattr(func, "__name__", "a function"))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        what, cure = cls.unseen
        raise BaechiError(f"{func} was called on {what}, in a way that torch functions do not see. {cure}")
