"""Copies that the code makes."""

from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement

COPIES = (
    "copy.deepcopy({a}.detach())",
    "{a}.clone()",
    "copy.copy({a})",
    "{a}.detach().clone()",
    "copy.deepcopy([{a}.detach()])[0]",
    "torch.tensor({a}.tolist(), dtype=torch.double, device={a}.device)",
    "torch.empty_like({a}).copy_({a})",
    "torch.from_numpy({a}.detach().cpu().numpy().copy()).to({a}.device)",
)


@statement(1.2)
def copied(s: Scope, p: Statement) -> None:
    """A copy of a value, and a use of it."""
    h = s.let(chosen(COPIES[::-1], p.numbers[1]).format(a=s.tensor(p.numbers[0])))
    if p.numbers[2] % 2:
        s.let(f"{s.some_linear(p.numbers[3])}({h})")
