"""Containers and objects: made, changed, read, given to layers and got from them."""

from .. import parts
from ..bags import BAGS
from ..recipe import Statement
from ..scope import Bag, Scope, chosen
from .registry import statement

GIVERS = (
    ("list", parts.GivesList),
    ("dict", parts.GivesDict),
    ("note", parts.GivesNote),
    ("state", parts.GivesState),
)


def _bag(s: Scope, number: int, otherwise: int) -> Bag:
    """A container that is there; a new one if there is none."""
    return chosen(s.bags, number) if s.bags else _made(s, otherwise, 0)


def _made(s: Scope, which: int, what: int) -> Bag:
    kind = chosen(list(BAGS)[::-1], which)
    for part in BAGS[kind].uses:
        s.part(part)
    bag = Bag(s.source.name("c"), kind)
    s.say(f"{bag.name} = {BAGS[kind].made.format(a=s.tensor(what))}")
    s.bags.append(bag)
    return bag


@statement(3)
def make(s: Scope, p: Statement) -> None:
    """A new container."""
    _made(s, p.numbers[0], p.numbers[1])


@statement(5)
def change(s: Scope, p: Statement) -> None:
    """A container grows, shrinks or is written."""
    bag = _bag(s, p.numbers[0], p.numbers[3])
    form = chosen(BAGS[bag.kind].changes[::-1], p.numbers[1])
    s.say(form.format(c=bag.name, a=s.tensor(p.numbers[2])))


@statement(3)
def read(s: Scope, p: Statement) -> None:
    """The code reads a container."""
    bag = _bag(s, p.numbers[0], p.numbers[3])
    form = chosen(BAGS[bag.kind].reads[::-1], p.numbers[1])
    s.let(form.format(c=bag.name, a=s.tensor(p.numbers[2])))


@statement(5)
def give(s: Scope, p: Statement) -> None:
    """A layer is given a container."""
    bag = _bag(s, p.numbers[0], p.numbers[3])
    part, form = chosen(BAGS[bag.kind].takers[::-1], p.numbers[1])
    name = s.member("l", f"{s.part(part)}()")
    s.let(f"{name}({s.tensor(p.numbers[2])}, {form.format(c=bag.name)})")


@statement(1.5)
def get(s: Scope, p: Statement) -> None:
    """A layer returns a container."""
    kind, part = chosen(GIVERS[::-1], p.numbers[0])
    layer = s.member("l", f"{s.part(part)}()")
    for used in BAGS[kind].uses:
        s.part(used)
    bag = Bag(s.source.name("c"), kind)
    s.say(f"{bag.name} = {layer}({s.tensor(p.numbers[1])})")
    s.bags.append(bag)


@statement(0.7)
def alias(s: Scope, p: Statement) -> None:
    """A second name for a container, or a shallow copy of it."""
    bag = _bag(s, p.numbers[0], p.numbers[3])
    other = Bag(s.source.name("c"), bag.kind)
    s.say(f"{other.name} = copy.copy({bag.name})" if p.numbers[1] % 2 else f"{other.name} = {bag.name}")
    s.bags.append(other)


@statement(0.7)
def unpack(s: Scope, p: Statement) -> None:
    """A layer returns a value and a view of it, which the code takes apart."""
    name = s.member("l", f"{s.part(parts.Views)}()")
    whole, left = s.source.name("h"), s.source.name("h")
    s.say(f"{whole}, {left} = {name}({s.tensor(p.numbers[0])})")
    if p.numbers[1] % 2:
        s.say(f"{left}.mul_(2)")
    s.tensors.append(whole)
    s.let(f"torch.cat([{left}, {left}], 1)")
