"""Containers and objects of a model's code: how each is made, changed and read, and which layers take it."""

from dataclasses import dataclass
from typing import Any

from . import parts


@dataclass(frozen=True)
class BagKind:
    """What code does with one kind of container. In texts, `c` is the container and `a` a tensor.

    Args:
        made: makes it.
        changes: statements that change it; it is never left empty.
        reads: expressions that read it.
        takers: layers that are given it, and what exactly they are given.
        uses: what `parts` it needs.
    """

    made: str
    changes: tuple[str, ...]
    reads: tuple[str, ...]
    takers: tuple[tuple[Any, str], ...]
    uses: tuple[Any, ...] = ()


_SEVERAL = parts.TotalOfSeveral
_LIST_CHANGES = (
    "{c}.append({a})",
    "{c}[-1] = {a}",
    "if len({c}) > 1: {c}.pop()",
    "{c}.insert(0, {a})",
    "{c} += [{a}]",
    "{c}.clear(); {c}.append({a})",
    "{c}.reverse()",
)
_LIST_READS = ("{c}[-1]", "sum({c})", "torch.stack(list({c})).sum(0)", "{a} * len({c})", "{c}[0]")

BAGS: dict[str, BagKind] = {
    "list": BagKind(
        "[{a}]",
        _LIST_CHANGES,
        _LIST_READS,
        ((_SEVERAL, "{c}"), (parts.Remembers, "{c}"), (_SEVERAL, "{c}[:2]"), (_SEVERAL, "tuple({c})")),
    ),
    "dict": BagKind(
        "{{'h': {a}}}",
        (
            "{c}['g'] = {a}",
            "{c}['h'] = {a}",
            "{c}.pop('g', None)",
            "{c}.update(h={a}, k={a})",
            "{c}.setdefault('d', {a})",
        ),
        ("{c}['h']", "sum({c}.values())", "{c}.get('g', {a})", "{a} * len({c})"),
        (
            (parts.TotalOfDict, "{c}"),
            (_SEVERAL, "{c}.values()"),
            (parts.TotalOfPairs, "{c}.items()"),
            (parts.TotalOfDict, "dict({c})"),
        ),
    ),
    "nested": BagKind(
        "{{'hs': [{a}], 'n': 2}}",
        ("{c}['hs'].append({a})", "{c}['n'] += 1", "del {c}['hs'][1:]", "{c}['hs'] = [{a}]"),
        ("{c}['hs'][-1]", "{a} * {c}['n']", "sum({c}['hs'])"),
        ((parts.TotalOfNested, "{c}"), (_SEVERAL, "{c}['hs']")),
    ),
    "note": BagKind(
        "Note({a})",
        ("{c}.h = {a}", "{c}.others.append({a})", "{c}.others = []", "{c}.others.clear()"),
        ("{c}.h", "{a} + sum({c}.others)", "{a} * len({c}.others)"),
        ((parts.TotalOfNote, "{c}"), (parts.WritesNote, "{c}")),
        (parts.Note,),
    ),
    "state": BagKind(
        "State({a})",
        ("{c}.h = {a}", "{c}.scale = 2.0", "{c}.scale += 1"),
        ("{c}.h", "{a} * {c}.scale", "replace({c}, h={a}).h"),
        ((parts.TotalOfState, "{c}"), (parts.TotalOfState, "replace({c}, scale=0.5)")),
        (parts.State,),
    ),
    "slots": BagKind(
        "Slots({a})",
        ("{c}.h = {a}", "{c}.scale = 2.0"),
        ("{c}.h", "{a} * {c}.scale"),
        ((parts.TotalOfState, "{c}"),),
        (parts.Slots,),
    ),
    "deque": BagKind(
        "deque([{a}], 3)", ("{c}.append({a})", "{c}[0] = {a}"), _LIST_READS, ((_SEVERAL, "{c}"),)
    ),
    "numbers": BagKind(
        "[0.5]",
        ("{c}.append(2.0)", "{c}[0] = 0.25", "if len({c}) > 1: {c}.pop()", "{c} += [1.0]"),
        ("{a} * {c}[-1]", "{a} * sum({c})"),
        ((parts.TimesNumbers, "{c}"),),
    ),
    "set": BagKind(
        "{{1, 2}}",
        ("{c}.add(4)", "{c}.discard(2)", "{c} |= {{8}}"),
        ("{a} * len({c})", "{a} * max({c})"),
        ((parts.TimesNumbers, "{c}"), (parts.TimesNumbers, "sorted({c})")),
    ),
}
