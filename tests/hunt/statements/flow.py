"""Loops, control flow by values, and early returns."""

from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement, write_all

TESTS = ("{a}.sum() > 0", "{a}[0, 0].item() > 0.1", "bool(({a} > 0.2).any())", "{a}.argmax() % 2 == 0")


def _inside(s: Scope, p: Statement, name: str) -> None:
    """Write the body, and let a variable have what came of it."""
    inner = s.inner()
    inner.tensors.append(name)
    write_all(inner, p.body)
    inner.say(f"{name} = {inner.tensor(0)}" if inner.tensor(0) != name else f"{name} = {name} * 2")


def _began(s: Scope, p: Statement) -> str:
    name = s.source.name("h")
    s.say(f"{name} = {s.tensor(p.numbers[0])}")
    return name


@statement(2, has_body=True)
def loop(s: Scope, p: Statement) -> None:
    """Some turns of the same layers."""
    name = _began(s, p)
    s.say(f"for _ in range({1 + p.numbers[1] % 3}):")
    _inside(s, p, name)
    s.tensors.append(name)


@statement(0.8, has_body=True)
def over_layers(s: Scope, p: Statement) -> None:
    """A loop over a list of layers."""
    name = _began(s, p)
    count = 2 + p.numbers[1] % 2
    made = f"nn.ModuleList([nn.Linear(4, 4, dtype=torch.double) for _ in range({count})])"
    layers = s.member("layers", made)
    s.say(f"for layer in {layers}:", f"    {name} = layer({name})")
    _inside(s, p, name)
    s.tensors.append(name)


@statement(1.5, has_body=True)
def branch(s: Scope, p: Statement) -> None:
    """One way or another, by values."""
    name = _began(s, p)
    s.say(f"if {chosen(TESTS[::-1], p.numbers[1]).format(a=s.tensor(p.numbers[2]))}:")
    _inside(s, p, name)
    if p.numbers[3] % 2:
        s.say("else:", f"    {name} = {s.some_linear(p.numbers[3])}({name})")
    s.tensors.append(name)


@statement(0.7, has_body=True)
def until(s: Scope, p: Statement) -> None:
    """Turns until values are small."""
    name = _began(s, p)
    s.say("for _ in range(3):", f"    if {name}.abs().max() < 0.5: break")
    _inside(s, p, name)
    s.tensors.append(name)


@statement(0.8, has_body=True)
def ungraded(s: Scope, p: Statement) -> None:
    """A stretch without gradients."""
    name = _began(s, p)
    s.say("with torch.no_grad():")
    _inside(s, p, name)
    s.tensors.append(name)


@statement(0.6)
def early(s: Scope, p: Statement) -> None:
    """An early return, by values or in evaluation."""
    if s.returns:
        test = chosen(("not self.training", *TESTS), p.numbers[1]).format(a=s.tensor(p.numbers[0]))
        s.say(f"if {test}: return {s.tensor(p.numbers[2])}")
