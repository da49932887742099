"""Layers."""

from .. import parts
from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement

NOTHING = (
    "nn.Identity()",
    "nn.Flatten()",
    "nn.Dropout(0.0)",
    "nn.Sequential()",
    "nn.Unflatten(1, (4,))",
    "nn.Dropout(0.0, inplace=True)",
)
ACTIVATIONS = ("nn.Tanh()", "nn.ReLU()", "nn.ReLU(inplace=True)", "nn.Softmax(1)", "nn.GELU()")
NORMS = ("nn.LayerNorm(4, dtype=torch.double)", "nn.BatchNorm1d(4, dtype=torch.double)")


@statement(14)
def linear(s: Scope, p: Statement) -> None:
    """A linear layer, new or used before."""
    s.let(f"{s.some_linear(p.numbers[1])}({s.tensor(p.numbers[0])})")


@statement(3)
def again(s: Scope, p: Statement) -> None:
    """A layer of any kind is called again."""
    if s.text.layers:
        s.let(f"{chosen(s.text.layers, p.numbers[1])}({s.tensor(p.numbers[0])})")


@statement(2.5)
def nothing(s: Scope, p: Statement) -> None:
    """A layer that hands on what it gets."""
    s.let(f"{s.layer(chosen(NOTHING[::-1], p.numbers[1]))}({s.tensor(p.numbers[0])})")


@statement(2)
def activation(s: Scope, p: Statement) -> None:
    """A layer without weights."""
    s.let(f"{s.layer(chosen(ACTIVATIONS[::-1], p.numbers[1]))}({s.tensor(p.numbers[0])})")


@statement(1.5)
def norm(s: Scope, p: Statement) -> None:
    """A norm; one keeps statistics."""
    s.let(f"{s.layer(chosen(NORMS[::-1], p.numbers[1]))}({s.tensor(p.numbers[0])})")


@statement(1)
def chain(s: Scope, p: Statement) -> None:
    """A `Sequential`."""
    inside = [chosen((*ACTIVATIONS, *NOTHING), p.numbers[1]), "nn.Linear(4, 4, dtype=torch.double)"]
    turned = ", ".join(inside if p.numbers[2] % 2 else inside[::-1])
    s.let(f"{s.layer(f'nn.Sequential({turned})')}({s.tensor(p.numbers[0])})")


@statement(0.7)
def recurrent(s: Scope, p: Statement) -> None:
    """A recurrent layer: a cell, or a kernel of cuDNN's kind that returns a tuple."""
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    if p.numbers[2] % 2:
        name = s.member("l", "nn.LSTM(4, 4, dtype=torch.double)")
        s.let(f"{name}({a})[0]")
    else:
        name = s.member("l", "nn.GRUCell(4, 4, dtype=torch.double)")
        s.let(f"{name}({a}, {b})")


@statement(0.7)
def attention(s: Scope, p: Statement) -> None:
    """Attention, which torch has as one layer."""
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    name = s.member("l", "nn.MultiheadAttention(4, 2, dtype=torch.double)")
    s.let(f"{name}({a}, {b}, {b})[0]")


@statement(0.7)
def table(s: Scope, p: Statement) -> None:
    """Rows of an embedding, chosen by values."""
    name = s.member("l", "nn.Embedding(4, 4, dtype=torch.double)")
    s.let(f"{name}({s.tensor(p.numbers[0])}.argmax(1))")


@statement(2.5)
def mix(s: Scope, p: Statement) -> None:
    """A layer of two values, by position or by name."""
    name = s.member("l", f"{s.part(parts.Mix)}()")
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    s.let(f"{name}({a}, other={b})" if p.numbers[2] % 2 else f"{name}({a}, {b})")


@statement(1.2)
def tied(s: Scope, p: Statement) -> None:
    """A linear layer with the weight of another."""
    known = [*s.text.linears]
    if known:
        name = s.linear()
        s.text.init.append(f"{name}.weight = {chosen(known, p.numbers[1])}.weight")
        s.let(f"{name}({s.tensor(p.numbers[0])})")


@statement(1)
def weight_in_code(s: Scope, p: Statement) -> None:
    """The model's own code reads a layer's weight."""
    known = s.text.linears or [s.linear()]
    a, layer = s.tensor(p.numbers[0]), chosen(known, p.numbers[1])
    forms = (f"F.linear({a}, {layer}.weight)", f"{a} + {layer}.bias", f"{a} @ {layer}.weight.detach()")
    s.let(chosen(forms[::-1], p.numbers[2]))


@statement(1.2)
def handed_down(s: Scope, p: Statement) -> None:
    """A module is an argument of a layer, which calls it or reads its weight."""
    known = s.text.linears or [s.linear()]
    part = chosen((parts.Reads, parts.Calls)[::-1], p.numbers[2])
    name = s.member("l", f"{s.part(part)}()")
    s.let(f"{name}({s.tensor(p.numbers[0])}, {chosen(known, p.numbers[1])})")


@statement(0.8)
def picked(s: Scope, p: Statement) -> None:
    """A layer of a list or dict of layers, chosen by values."""
    two = ["nn.Linear(4, 4, dtype=torch.double)"] * 2
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    if p.numbers[2] % 2:
        name = s.member("layers", f"nn.ModuleDict({{'up': {two[0]}, 'down': {two[1]}}})")
        s.let(f"{name}['up' if {b}.sum() > 0 else 'down']({a})")
    else:
        name = s.member("layers", f"nn.ModuleList([{', '.join(two)}])")
        s.let(f"{name}[int({b}.sum() > 0)]({a})")
