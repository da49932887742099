"""Modules inside of modules: nested, called again, shared, checkpointed."""

from dataclasses import replace

from ..recipe import Statement
from ..scope import Bag, Scope, Text, chosen
from .registry import statement, write_all


def _class(s: Scope, p: Statement, bag: Bag | None) -> tuple[str, bool]:
    """Write a class with this body; its name, and whether it returns two values."""
    text = Text(
        s.source.name("Block"), ["shared"], ["self.shared = shared"], ["self.shared"], ["self.shared"]
    )
    text.inputs = ["a", "b"] if bag is None else ["a", "b", "c"]
    scope = Scope(s.source, text, ["a", "b"], [] if bag is None else [Bag("c", bag.kind)], returns=False)
    write_all(scope, p.body)
    several = p.numbers[3] % 4 == 1
    scope.say(f"return {scope.tensor(0)}, {scope.tensor(1)}" if several else f"return {scope.tensor(0)}")
    s.source.classes.append(text)
    return text.name, several


@statement(4, has_body=True)
def block(s: Scope, p: Statement) -> None:
    """A block with a layer of ours; perhaps two such blocks that share it, or one that is called twice."""
    bag = chosen(s.bags, p.numbers[2]) if s.bags and p.numbers[2] % 2 else None
    name, several = _class(s, p, bag)
    shared = s.some_linear(p.numbers[2])
    given = "" if bag is None else f", {bag.name}"
    first = s.member("block", f"{name}({shared})")
    calls = {0: [first], 1: [first, first], 2: [first, s.member("block", f"{name}({shared})")]}
    for number, called in enumerate(calls.get(p.numbers[1] % 4, [first])):
        a, b = s.tensor(p.numbers[0] * (1 + number)), s.tensor(1 + number)
        s.let(f"{called}({a}, {b}{given}){'[0]' if several else ''}")


MEMOS = ("memo", "later", "later_in_place")


def _without_memos(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    kept = [inner for inner in body if inner.kind not in MEMOS]
    return tuple([replace(inner, body=_without_memos(inner.body)) for inner in kept])


@statement(1.5, has_body=True)
def checkpointed(s: Scope, p: Statement) -> None:
    """A block whose activations are computed again in backward.

    It keeps no value from call to call: torch may refuse a region that computes something else again.
    """
    name, several = _class(s, replace(p, body=_without_memos(p.body)), None)
    member = s.member("block", f"{name}({s.some_linear(p.numbers[2])})")
    a, b = s.tensor(p.numbers[0]), s.tensor(1 + p.numbers[0])
    call = f"checkpoint({member}, {a}, {b}, use_reentrant={bool(p.numbers[1] % 2)})"
    s.let(f"{call}{'[0]' if several else ''}")
