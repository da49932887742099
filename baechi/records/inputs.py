"""Example inputs: what a call of the model is given."""

from collections.abc import Iterable, Mapping
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
    def of(cls, inputs: Any) -> "Inputs":
        """Read what users hand in.

        Args:
            inputs: `Inputs`, a tuple (positional), a list as a `DataLoader` makes it (positional, too), a
                mapping with text keys (keyword), or one value such as a tensor (the only argument).

        Returns:
            The arguments of the call.

        Raises:
            TypeError: the value is a set, or a list of other things than tensors and plain values: neither
                positional nor keyword.
        """
        if isinstance(inputs, Inputs):
            return inputs
        if isinstance(inputs, tuple) or (isinstance(inputs, list) and inputs and all(map(_is_plain, inputs))):
            return cls(*inputs)
        if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
            return cls(**inputs)
        if isinstance(inputs, (list, set)):
            kind = type(inputs).__name__
            raise TypeError(
                f"inputs is of type {kind}: pass a tensor, a tuple or a list of tensors (positional "
                f"arguments), a dict (keyword arguments), or baechi.Inputs(*args, **kwargs); a model that "
                f"takes one {kind} gets baechi.Inputs(the_{kind})"
            )
        return cls(inputs)

    @classmethod
    def each_of(cls, inputs: Any = None, examples: Iterable[Any] | None = None) -> "list[Inputs]":
        """Read what users hand in, where it may be several examples.

        Args:
            inputs: as for `of`; or a list of `Inputs`, tuples or mappings: calls that take different paths.
            examples: the same, said outright: each is as for `of`.

        Returns:
            The arguments of each call.

        Raises:
            TypeError: as for `of`; or a list mixes examples and values.
            ValueError: an empty list, or both are given.
        """
        if examples is not None:
            if inputs is not None:
                raise ValueError("give inputs (one example) or examples (several), not both")
            inputs, several = list(examples), True
        else:
            several = isinstance(inputs, list) and any(isinstance(one, _EXAMPLES) for one in inputs)
            if several and not all(isinstance(one, _EXAMPLES) for one in inputs):
                kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in inputs))
                raise TypeError(
                    f"inputs is a list of {kinds}: several examples are a list of baechi.Inputs, dicts or "
                    "tuples, or examples=[...]; arguments of one call are a tuple, or baechi.Inputs(*args)"
                )
        if isinstance(inputs, list) and not inputs:
            raise ValueError("the list of examples is empty: it holds an example for each path")
        return [cls.of(one) for one in (inputs if several else [inputs])]

    def __repr__(self) -> str:
        given = [type(arg).__name__ for arg in self.args]
        given += [f"{name}={type(value).__name__}" for name, value in self.kwargs.items()]
        return f"Inputs({', '.join(given)})"


_EXAMPLES = (Inputs, tuple, Mapping)


def _is_plain(value: Any) -> bool:
    """Whether a value of a list can only be an argument: a tensor, a number, None."""
    return not isinstance(value, (*_EXAMPLES, list, set))
