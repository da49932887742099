"""What a line of code may name: the values, containers and layers that are there by then."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Text:
    """The text of one module class."""

    name: str
    parameters: list[str] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    linears: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        heads = [f"class {self.name}(nn.Module):"]
        heads += [f"    def __init__({', '.join(['self', *self.parameters])}):", "        super().__init__()"]
        lines = [f"        {line}" for line in self.init]
        call = ["", f"    def forward({', '.join(['self', *self.inputs])}):"]
        return "\n".join([*heads, *lines, *call, *(f"        {line}" for line in self.forward)])


@dataclass
class Source:
    """The text of a whole model: its classes, and the parts from `parts` that they use."""

    classes: list[Text] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)
    names: int = 0

    def name(self, prefix: str) -> str:
        """A name that is not taken.

        Args:
            prefix: how it begins.
        """
        self.names += 1
        return f"{prefix}{self.names}"


@dataclass(frozen=True)
class Bag:
    """A container or an object that a variable names; it always holds something.

    Args:
        name: the variable.
        kind: which, as listed in `bags`.
    """

    name: str
    kind: str


@dataclass
class Scope:
    """A stretch of a `forward`.

    Args:
        source: the whole text.
        text: the class that it belongs to.
        tensors: variables of the common shape, the newest last.
        bags: containers, the newest last.
        indent: how deep it is.
        returns: how the code may return early; empty if it may not.
    """

    source: Source
    text: Text
    tensors: list[str]
    bags: list[Bag] = field(default_factory=list)
    indent: int = 0
    returns: bool = False

    def say(self, *lines: str) -> None:
        """Write lines of `forward`.

        Args:
            lines: without the indentation.
        """
        self.text.forward += [f"{'    ' * self.indent}{line}" for line in lines]

    def tensor(self, number: int) -> str:
        """A variable; 0 is the newest.

        Args:
            number: which.
        """
        return chosen(self.tensors, number)

    def let(self, expression: str) -> str:
        """A new variable with a value of the common shape.

        Args:
            expression: the value.
        """
        name = self.source.name("h")
        self.say(f"{name} = {expression}")
        self.tensors.append(name)
        return name

    def member(self, prefix: str, expression: str) -> str:
        """A new attribute of the module, made in `__init__`.

        Args:
            prefix: how its name begins.
            expression: its value.
        """
        name = f"self.{self.source.name(prefix)}"
        self.text.init.append(f"{name} = {expression}")
        return name

    def layer(self, expression: str) -> str:
        """A new layer, one value to one value, that other statements may use as well.

        Args:
            expression: makes it.
        """
        name = self.member("l", expression)
        self.text.layers.append(name)
        return name

    def linear(self) -> str:
        """A new linear layer."""
        name = self.layer("nn.Linear(4, 4, dtype=torch.double)")
        self.text.linears.append(name)
        return name

    def some_linear(self, number: int) -> str:
        """A linear layer that is there, or a new one; 0 is a new one.

        Args:
            number: which.
        """
        known = self.text.linears
        return known[number % len(known)] if number % 3 == 2 and known else self.linear()

    def part(self, part: Any) -> str:
        """The name of a class or function from `parts`, which the text then has.

        Args:
            part: the class or function.
        """
        self.source.parts[part.__name__] = part
        return str(part.__name__)

    def inner(self) -> "Scope":
        """A block of this code, one step deeper; its variables are its own."""
        return replace(self, tensors=[*self.tensors], bags=[*self.bags], indent=self.indent + 1)


def chosen(options: Sequence[T], number: int) -> T:
    """One of several, from the last one on.

    Args:
        options: at least one.
        number: which; 0 is the last.
    """
    return options[-1 - number % len(options)]
