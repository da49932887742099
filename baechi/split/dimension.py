"""What can be split of a layer's class: its dimensions by name, and how tiles along each are joined.

    Linear, along "out"                          Linear, along "in"
    x ──▶ tile 0: rows 0 to 3  ──┐               x[.., 0:4] ──▶ tile 0: columns 0 to 3, bias ──┐
    x ──▶ tile 1: rows 4 to 7  ──┴─▶ cat         x[.., 4:8] ──▶ tile 1: columns 4 to 7 ────────┴─▶ sum

Nothing here needs torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class SplitDimension:
    """A dimension along which a layer can be split.

    Args:
        cuts: by weight, the axis that is cut. Weights that are not cut go whole to the first tile, so they
            may only be added. Where none is cut, tiles take rows of the input (`takes`), and each is given
            the weights whole.
        join: whether the tiles' outputs are concatenated (`"cat"`) or added (`"sum"`).
        axis: along which axis outputs are concatenated; from the end, so that batches may have any number of
            dimensions.
        takes: the axis of the input of which each tile takes its share; None where each takes all of it.
        length: the layer's attribute that says how long the dimension is, if it is not as long as the axis
            that is cut (attention has as many `num_heads`).
        values: by weight, of how many equal values it consists, one after the other along its axis. A tile
            has its share of each (of queries, keys and values).
    """

    cuts: Mapping[str, int]
    join: Literal["cat", "sum"]
    axis: int = -1
    takes: int | None = None
    length: str = ""
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """The share of a layer that one tile computes.

    Args:
        start: where it begins along the dimension.
        stop: where it ends.
        size: how long the whole is.
    """

    start: int
    stop: int
    size: int

    @property
    def is_first(self) -> bool:
        """Whether it begins where the whole begins."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends where the whole ends."""
        return self.stop == self.size

    def within(self, length: int) -> tuple[int, int]:
        """Where it begins and ends in an input: in proportion, if a batch has other rows than the example.

        Args:
            length: of the input along the dimension.
        """
        return self.start * length // self.size, self.stop * length // self.size


Compute = Callable[..., Any]
"""`compute(options, dimension, share, x, *weights)`: a tile's output. Of a weight that consists of several
values it is given a tuple; `x` is a `Given` where the layer takes more than one tensor."""


@dataclass(frozen=True)
class SplitRule:
    """How a class of layers is split.

    Args:
        dims: by name, what can be split; the first one is taken where none is named.
        weights: the layer's weights, in the order in which `compute` takes them; one that is not there is
            None.
        compute: a function of a module (so that models can be pickled): a tile's output.
        options: the layer's attributes that `compute` needs, noted when the layer is split.
        refuses: from a layer to the reason why it cannot be split; empty if it can.
        notes: from a layer to more options, which are no attributes of it.
        takes_all: whether the layer takes more than one tensor. `compute` is given all of its arguments then,
            and tiles may return tuples, of which each tensor is added.
    """

    dims: Mapping[str, SplitDimension]
    weights: Sequence[str]
    compute: Compute
    options: Sequence[str] = ()
    refuses: Callable[[Any], str] = field(default=lambda layer: "")
    notes: Callable[[Any], Mapping[str, Any]] = field(default=lambda layer: {})
    takes_all: bool = False


class Given(NamedTuple):
    """What a layer was called with.

    Args:
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


_RULES: dict[str, SplitRule] = {}
_NAMES: dict[str, str] = {}
_FAMILIES: dict[str, SplitRule] = {}


def _find(table: Mapping[str, Any], key: str) -> Any:
    """What a table has for a class; torch's own layers are in it as soon as something is looked for."""
    if key not in table:
        import_module("baechi.split.rules.layers")
        import_module("baechi.split.rules.attention")
        import_module("baechi.split.rules.scaled")
    return table.get(key)


def _family_of(name: str) -> SplitRule | None:
    return next((rule for ending, rule in _FAMILIES.items() if name.endswith(ending)), None)


def key_of(kind: type) -> str:
    """The full name of a class.

    Args:
        kind: a class of layers.
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def add_rule(key: str, rule: SplitRule) -> None:
    """Add a rule, or replace one of the same class.

    Args:
        key: the full name of a class of layers.
        rule: how its layers are split.

    Raises:
        ValueError: it has no dimensions, cuts weights that it does not list, concatenates what an uncut
            weight was added to once, or cuts neither weights nor the input; or another class of the same
            short name has a rule.
    """
    name = key.rpartition(".")[2]
    faults = [] if rule.dims else ["it has no dimensions"]
    for dim, how in rule.dims.items():
        faults += [
            f"{dim} cuts {weight}, which is not listed" for weight in how.cuts if weight not in rule.weights
        ]
        whole = [weight for weight in rule.weights if weight not in how.cuts]
        if not how.cuts and (how.takes is None or how.join != "cat"):
            faults.append(f"{dim} cuts no weight, so it has to take and concatenate rows of the input")
        if how.cuts and how.join == "cat" and whole:
            faults.append(f"{dim} concatenates, so it has to cut {', '.join(whole)}, too")
    if _NAMES.get(name, key) != key:
        faults.append(f"{_NAMES[name]} is split by a rule of that name already")
    if faults:
        raise ValueError(f"the rule for {key} is malformed: {'; '.join(faults)}")
    _RULES[key], _NAMES[name] = rule, key


def add_family(ending: str, rule: SplitRule) -> None:
    """Add a rule for classes that one library has for each of its models, under names of one ending.

    Args:
        ending: of the classes' names.
        rule: how their layers are split, unless a class has a rule of its own. It refuses a layer whose code
            is another one.
    """
    _FAMILIES[ending] = rule


def rule_of(kind: type) -> SplitRule | None:
    """The rule of a class of layers; None if they cannot be split. Subclasses need rules of their own.

    Args:
        kind: the class.
    """
    found: SplitRule | None = _find(_RULES, key_of(kind))
    return found or _family_of(kind.__name__)


def rule_named(name: str) -> SplitRule:
    """The rule of a class that a layer graph names.

    Args:
        name: the short name of a class that has a rule.

    Raises:
        ValueError: no class of that name has one in this process.
    """
    key = _find(_NAMES, name)
    found = _family_of(name) if key is None else _RULES[key]
    if found is None:
        raise ValueError(f"no rule splits a {name}: add one with baechi.register_split")
    return found
