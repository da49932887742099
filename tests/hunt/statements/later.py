"""State that only a later call writes, deletes or begins with: a first step has not seen it."""

from .. import parts
from ..recipe import Statement
from ..scope import Scope, chosen
from .registry import statement, write_all

WHEN = ("{n} == 2", "{n} >= 2", "{n} % 2 == 0", "{n} != 2", "{n} > 0")
"""In which calls: the second one, all but the first, all but the second, every one."""

FORMS = (
    # how it begins; what is written before the statements inside; what is read after them; and done at last
    ("{k} = None", "{k} = {a}", "{b} + {k}", "{k} = None"),
    ("", "{k} = {a}", "{b} * {k}", "del {k}"),
    ("{k} = []", "{k}.append({a})", "{b} + {k}[-1]", "{k}.pop()"),
    ("{k} = {{}}", "{k}['h'] = {a}", "{b} * {k}['h']", "{k}.pop('h')"),
    ("{k} = None", "{k} = [] if {k} is None else {k}; {k}.append({a})", "{b} + {k}[-1]", "del {k}[1:]"),
    ("{k} = None", "{k} = [] if {k} is None else {k}; {k}.append({a}.detach())", "{b} + sum({k})", ""),
    ("{k} = [{{}}]", "{k}[0]['h'] = {a}", "{b} + {k}[0]['h']", "{k}[0].clear()"),
    ("{k} = Channel()", "{k}.value = {a}", "{b} + {k}.value", "{k}.value = 0.0"),
    ("{k} = None", "{k} = {k} or Channel(); {k}.value = {a}", "{b} * {k}.value", "{k}.value = 1.0"),
    ("{k} = 0.5", "del {k}", "{b} + {a}.detach()", "{k} = 0.5"),
    ("{k} = 1", "{k} += 1", "{b} * {k}", ""),
    ("{k} = 1", "{k} += 1", "{b} * {k}", "{k} -= 1"),
    ("{k} = ['h']", "{k}.clear()", "{b} * len({k})", "{k} = ['h', 'g']"),
)
IN_PLACE = (
    ("{k}.copy_({a}.detach().mean(0))", "{b} + {k}.to({b}.device).clone()"),
    ("{k} = {a}.detach().mean(0)", "{b} + {k}.to({b}.device)"),
    ("{k}.add_(1)", "{b} * {k}.to({b}.device).clone()"),
)
"""Of a tensor of the module's own. What is no buffer lies on the host until it is read."""


@statement(2, has_body=True)
def later(s: Scope, p: Statement) -> None:
    """An attribute, a container or an object is written before some statements and read after them."""
    kept = f"self.{s.source.name('later')}"
    begins, writes, reads, ends = chosen(FORMS[::-1], p.numbers[0])
    if begins:
        s.text.init.append(begins.format(k=kept))
    if "Channel" in begins + writes:
        s.part(parts.Channel)
    _around(s, p, kept, writes, reads, ends)


@statement(0.7, has_body=True)
def later_in_place(s: Scope, p: Statement) -> None:
    """The same of a buffer, or of a tensor in an attribute or a list."""
    name = s.source.name("later")
    writes, reads = chosen(IN_PLACE[::-1], p.numbers[0])
    made = "torch.zeros(4, dtype=torch.double)"
    kept, init = chosen(
        (
            (f"self.{name}", f"self.register_buffer('{name}', {made})"),
            (f"self.{name}", f"self.{name} = {made}"),
            (f"self.{name}[0]", f"self.{name} = [{made}]"),
        )[::-1],
        p.numbers[3],
    )
    s.text.init.append(init)
    _around(s, p, kept, writes, reads, "")


def _around(s: Scope, p: Statement, kept: str, writes: str, reads: str, ends: str) -> None:
    counter, now = f"self.{s.source.name('calls')}", s.source.name("now")
    s.text.init.append(f"{counter} = 0")
    s.say(f"{counter} += 1", f"{now} = {chosen(WHEN[::-1], p.numbers[1]).format(n=counter)}")
    a = s.tensor(p.numbers[2])
    s.say(f"if {now}:", *[f"    {line}" for line in writes.format(k=kept, a=a).split("; ")])
    write_all(s, p.body)
    b = s.tensor(0)
    s.let(f"{reads.format(k=kept, a=a, b=b)} if {now} else {b}")
    if ends:
        s.say(f"if {now}: {ends.format(k=kept)}")
