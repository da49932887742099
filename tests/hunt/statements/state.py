"""State: buffers, attributes of modules, and what outlives a call."""

from .. import parts
from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement


@statement(2)
def stateful(s: Scope, p: Statement) -> None:
    """A layer that writes its buffers, or registers one, when it is called."""
    part = chosen((parts.Registers, parts.Counts), p.numbers[1])
    s.let(f"{s.layer(f'{s.part(part)}()')}({s.tensor(p.numbers[0])})")


@statement(1.5)
def buffer(s: Scope, p: Statement) -> None:
    """The model's code writes a buffer of its own, and reads it."""
    name = s.source.name("b")
    s.text.init.append(f"self.register_buffer('{name}', torch.zeros(4, dtype=torch.double))")
    a = f"{s.tensor(p.numbers[0])}.detach().mean(0)"
    forms = (
        f"self.{name}.mul_(0.9).add_({a})",
        f"self.{name} += {a}",
        f"self.{name} = self.{name} * 0.5 + {a}",
        f"self.{name}.copy_({a})",
    )
    s.say(chosen(forms[::-1], p.numbers[2]))
    s.let(f"{s.tensor(p.numbers[1])} + self.{name}{'.clone()' if p.numbers[3] % 2 else ''}")


@statement(1.5)
def memo(s: Scope, p: Statement) -> None:
    """The code keeps a value in an attribute, and reads it there, perhaps in the next call."""
    name = s.source.name("memo")
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    if p.numbers[2] % 2:
        s.text.init.append(f"self.{name} = None")
        h = s.let(f"{b} if self.{name} is None else {b} + self.{name}")
        s.say(f"self.{name} = {chosen((h, a), p.numbers[3])}.detach()")
    else:
        s.say(f"self.{name} = {a}")
        s.let(f"{b} + self.{name}")


@statement(1.5)
def history(s: Scope, p: Statement) -> None:
    """A list in an attribute grows and shrinks from call to call, and a layer is given it."""
    name = s.member("history", "[]")
    s.say(f"{name}.append({s.tensor(p.numbers[0])}{'.detach()'})", f"if len({name}) > 2: {name}.pop(0)")
    taker = s.member("l", f"{s.part(parts.TotalOfSeveral)}()")
    s.let(f"{taker}({s.tensor(p.numbers[1])}, {name})")
    if p.numbers[2] % 2:
        s.say(f"{name}.clear()")


@statement(1.5)
def seen(s: Scope, p: Statement) -> None:
    """A layer keeps a value in an attribute; the code, or another layer, reads it."""
    layer = s.member("l", f"{s.part(parts.Sees)}()")
    h = s.let(f"{layer}({s.tensor(p.numbers[0])})")
    s.let(f"{s.tensor(p.numbers[1])} + {layer}.seen" if p.numbers[2] % 2 else f"{h} * {layer}.seen")


@statement(1.2)
def channel(s: Scope, p: Statement) -> None:
    """One layer leaves a value in an object, another takes it from there."""
    made = s.source.name("channel")
    s.text.init.append(f"{made} = {s.part(parts.Channel)}()")
    shouts = s.member("l", f"{s.part(parts.Shouts)}({made})")
    hears = s.member("l", f"{s.part(parts.Hears)}({made})")
    h = s.let(f"{shouts}({s.tensor(p.numbers[0])})")
    s.let(f"{hears}({s.tensor(p.numbers[1]) if p.numbers[2] % 2 else h})")


@statement(0.8)
def setting(s: Scope, p: Statement) -> None:
    """The code sets an attribute of a layer before it calls it, and another one after."""
    layer = s.member("l", "nn.Dropout(0.0)") if p.numbers[2] % 2 else s.member("l", f"{s.part(parts.Mix)}()")
    a, b = s.tensor(p.numbers[0]), s.tensor(p.numbers[1])
    if p.numbers[2] % 2:
        s.say(f"{layer}.p = 0.0")
        s.let(f"{layer}({a})")
        return
    s.say(f"{layer}.note = {b}")
    h = s.let(f"{layer}({a}, {b})")
    s.say(f"{layer}.note = None")
    s.let(f"{h} * 0.5")
