"""Views, and writes in place across layers."""

from .. import parts
from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement

SAME = ("{a}.view(-1, 4)", "{a}.T.T", "{a}[:]", "{a}.detach()", "{a}.reshape(-1, 4)", "{a}.contiguous()")
WRITES = (
    "{a}.add_({b})",
    "{a}.mul_(0.5)",
    "{a}[:, :2] = {b}[:, 2:]",
    "{a}[0].zero_()",
    "{a} += {b}",
    "{a}.copy_({b})",
    "{a}.chunk(2, 1)[0].mul_(2)",
    "{a}.T.add_(1)",
)


@statement(1.5)
def view(s: Scope, p: Statement) -> None:
    """Another tensor on the same memory."""
    s.let(chosen(SAME[::-1], p.numbers[1]).format(a=s.tensor(p.numbers[0])))


@statement(2.5)
def write(s: Scope, p: Statement) -> None:
    """A tensor of the code's own is written in place."""
    a = s.tensor(p.numbers[0])
    if p.numbers[3] % 3:
        a = s.let(f"{a} * 1")
    s.say(chosen(WRITES[::-1], p.numbers[2]).format(a=a, b=s.tensor(1 + p.numbers[1])))


@statement(1)
def write_after(s: Scope, p: Statement) -> None:
    """A tensor is handed to a layer, and written afterwards."""
    own = s.let(f"{s.tensor(p.numbers[0])} * 1")
    part = s.part(parts.Mix)
    s.let(f"{s.member('l', f'{part}()')}({s.tensor(p.numbers[1])}, {own})")
    s.say(chosen(WRITES[::-1], p.numbers[2]).format(a=own, b=s.tensor(2 + p.numbers[3])))


@statement(1.2)
def filled(s: Scope, p: Statement) -> None:
    """A layer writes what it is given, and returns it."""
    own = s.let(f"{s.tensor(p.numbers[0])} * 1")
    s.let(f"{s.layer(f'{s.part(parts.Fills)}()')}({own})")


@statement(1.2)
def target(s: Scope, p: Statement) -> None:
    """A layer writes into a tensor that the code made for it."""
    made = chosen(("torch.zeros_like({a})", "{a}.clone()", "{a}.new_ones({a}.shape)"), p.numbers[2])
    own = s.let(made.format(a=s.tensor(p.numbers[0])))
    s.let(f"{s.member('l', f'{s.part(parts.Writes)}()')}({s.tensor(1 + p.numbers[1])}, {own})")
