"""Functions with backwards of their own."""

from .. import parts
from ..recipe import Statement
from ..scope import Scope
from .registry import statement


@statement(1)
def function(s: Scope, p: Statement) -> None:
    """A custom function in the model's code."""
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    if p.numbers[2] % 3 == 0:
        s.let(f"{s.part(parts.Bent)}.apply({a})")
    elif p.numbers[2] % 3 == 1:
        s.let(f"{s.part(parts.Packed)}.apply({a}, {b}, 0.5)[0]")
    else:
        s.let(f"{s.part(parts.Doubled)}.apply({a} * 1)")


@statement(1)
def reversible(s: Scope, p: Statement) -> None:
    """Reversible layers in a row, each of which frees its input."""
    s.part(parts.Freed)
    make = f"{s.part(parts.Reversible)}({'True' if p.numbers[1] % 2 else ''})"
    value = f"{s.tensor(p.numbers[0])} * 1"
    for _ in range(1 + p.numbers[2] % 2):
        value = f"{s.member('l', make)}({value})"
    s.let(value)


@statement(0.6)
def hooked(s: Scope, p: Statement) -> None:
    """A hook on a value changes its gradient."""
    a = s.let(f"{s.tensor(p.numbers[0])} * 1")
    s.say(f"if {a}.requires_grad: {a}.register_hook(lambda grad: grad * 0.5)")
