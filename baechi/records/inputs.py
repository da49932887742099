"""Example inputs: what a call of the model is given."""

from collections.abc import Mapping
from typing import Any


class Inputs:
    """The positional and keyword arguments of one call of the model.

    Args:
        *args: positional arguments.
        **kwargs: keyword arguments.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    @classmethod
    def of(cls, example_inputs: Any) -> "Inputs":
        """Read what users hand in.

        Args:
            example_inputs: `Inputs`, a tuple (positional), a mapping with text keys (keyword), or
                one value such as a tensor (the only positional argument).

        Returns:
            The arguments of the call.

        Raises:
            TypeError: the value is a list or a set, which says neither positional nor keyword.
        """
        if isinstance(example_inputs, Inputs):
            return example_inputs
        if isinstance(example_inputs, tuple):
            return cls(*example_inputs)
        if isinstance(example_inputs, Mapping) and all(isinstance(key, str) for key in example_inputs):
            return cls(**example_inputs)
        if isinstance(example_inputs, (list, set)):
            kind = type(example_inputs).__name__
            raise TypeError(
                f"example_inputs is a {kind}: pass a tensor, a tuple (positional arguments), a dict "
                f"(keyword arguments), or baechi.Inputs(*args, **kwargs); a model that takes one {kind} "
                f"gets baechi.Inputs(the_{kind})"
            )
        return cls(example_inputs)

    @classmethod
    def each_of(cls, example_inputs: Any) -> "list[Inputs]":
        """Read what users hand in, where it may be several examples.

        Args:
            example_inputs: as for `of`; or a list of these: calls that take different paths.

        Returns:
            The arguments of each call.

        Raises:
            TypeError: as for `of`.
            ValueError: an empty list.
        """
        if not isinstance(example_inputs, list):
            return [cls.of(example_inputs)]
        if not example_inputs:
            raise ValueError("example_inputs is an empty list: it holds an example for each path")
        return [cls.of(example) for example in example_inputs]

    def __repr__(self) -> str:
        given = [type(arg).__name__ for arg in self.args]
        given += [f"{name}={type(value).__name__}" for name, value in self.kwargs.items()]
        return f"Inputs({', '.join(given)})"
