"""Random draws, in layers and in the code."""

from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement

DRAWS = (
    "{a} + torch.rand_like({a})",
    "F.dropout({a}, 0.5, self.training)",
    "{a} * torch.rand(4, dtype=torch.double, device={a}.device)",
    "{a}[torch.randperm(len({a}), device={a}.device)]",
    "{a} * torch.bernoulli({a}.sigmoid())",
    "torch.randn({a}.shape, dtype=torch.double, device={a}.device) + {a}",
)


@statement(2, draws=True)
def draw(s: Scope, p: Statement) -> None:
    """The code draws."""
    s.let(chosen(DRAWS[::-1], p.numbers[1]).format(a=s.tensor(p.numbers[0])))


@statement(2, draws=True)
def dropout(s: Scope, p: Statement) -> None:
    """A layer draws."""
    made = "nn.Dropout(0.5, inplace=True)" if p.numbers[1] % 4 == 3 else "nn.Dropout(0.5)"
    s.let(f"{s.layer(made)}({s.tensor(p.numbers[0])})")


@statement(0.5, draws=True)
def chance(s: Scope, p: Statement) -> None:
    """A layer is left out by chance."""
    a = s.tensor(p.numbers[0])
    s.let(f"{s.some_linear(p.numbers[1])}({a}) if torch.rand(()) > 0.5 else {a}")
