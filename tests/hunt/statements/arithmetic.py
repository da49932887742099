"""Light work between layers."""

from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement

BINARY = ("{a} + {b}", "{a} * {b}", "{a} - {b}", "torch.where({a} > 0, {a}, {b})", "torch.maximum({a}, {b})")
UNARY = ("{a} * 2", "torch.tanh({a})", "torch.softmax({a}, 1)", "{a} - {a}.mean()", "{a}.cumsum(0).sigmoid()")
JOINED = (
    "torch.cat([{a}, {b}], 1)[:, 1:5]",
    "torch.stack([{a}, {b}]).sum(0)",
    "torch.cat([{a}[:, :2], {b}[:, 2:]], 1)",
    "torch.stack([{a}, {b}], 2).flatten(1)[:, ::2]",
    "sum(torch.cat([{a}, {b}], 1).split(4, 1))",
)


@statement(5)
def binary(s: Scope, p: Statement) -> None:
    """Two values make one."""
    s.let(chosen(BINARY[::-1], p.numbers[2]).format(a=s.tensor(p.numbers[0]), b=s.tensor(p.numbers[1])))


@statement(3)
def unary(s: Scope, p: Statement) -> None:
    """One value makes one."""
    s.let(chosen(UNARY[::-1], p.numbers[1]).format(a=s.tensor(p.numbers[0])))


@statement(2)
def joined(s: Scope, p: Statement) -> None:
    """cat, stack and split."""
    s.let(chosen(JOINED[::-1], p.numbers[2]).format(a=s.tensor(p.numbers[0]), b=s.tensor(p.numbers[1])))


@statement(2)
def product(s: Scope, p: Statement) -> None:
    """A matrix product, which is heavy work: a module that does it is kept whole."""
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    forms = ("torch.einsum('ij,kj,kl->il', {a}, {b}, {b})", "torch.tanh({a} @ {b}.T @ {a})")
    s.let(chosen(forms, p.numbers[2]).format(a=a, b=b))


@statement(0.7)
def number(s: Scope, p: Statement) -> None:
    """A value goes to the host, as a number, and comes back."""
    forms = ("{a} * {b}.mean().item()", "{a} + float({b}.sum() > 0)", "{a} * {b}.argmax(1)[0].tolist()")
    s.let(chosen(forms[::-1], p.numbers[2]).format(a=s.tensor(p.numbers[0]), b=s.tensor(p.numbers[1])))
