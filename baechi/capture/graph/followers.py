"""Functional ops that a plan may place by themselves; without a say of the plan they follow an input.

    a ─┐                   cat lies with b, as long as nothing is gained by another device
       ├─ cat ─ relu ─ c   relu has one input: it lies where cat lies, always
    b ─┘

An op is bound to its input if it writes in place, makes no memory of its own (its output is a view), draws
random numbers, or is in a region that backward runs again; and if its inputs share a device anyway.
"""

from collections.abc import Collection, Sequence

from baechi.capture.graph.draft import Draft
from baechi.capture.graph.groups import ELSEWHERE, Groups
from baechi.capture.watch.trace import Function
from baechi.torchlib.operators.rule import Rule
from baechi.torchlib.operators.table import rule_of


class Followers:
    """The functional ops that may lie apart from what they follow.

    Args:
        groups: nodes that must share a device.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._found: list[tuple[Draft, str, tuple[str, ...]]] = []

    def note(self, draft: Draft, function: Function | None, chosen: int, holders: Sequence[str]) -> None:
        """Note an op, and the input that it lies with by rule."""
        followed = holders[chosen]
        if function is None or function.whole:  # the runtime cannot bring one input to another
            for holder in holders:
                self._groups.join(holder, draft.name)
        elif function.bound or _is_peculiar(rule_of(function.name)) or followed.startswith(ELSEWHERE):
            self._groups.join(followed, draft.name)
        else:
            self._found.append((draft, followed, tuple(holders)))

    def settle(self, writers: Collection[Draft]) -> dict[str, str]:
        """Bind those that are not free after all; when the walk is over."""
        free = []
        for draft, followed, holders in self._found:
            if draft in writers or not draft.made.keys() & draft.escaped:
                self._groups.join(followed, draft.name)
            else:
                free.append((draft.name, followed, holders))
        follows: dict[str, str] = {}
        for name, followed, holders in free:
            if len({self._groups.first(holder) for holder in holders}) < 2:
                self._groups.join(followed, name)
            elif self._groups.first(name) != self._groups.first(followed):
                follows[name] = followed
        return follows


def _is_peculiar(rule: Rule) -> bool:
    """Whether a function does more with its tensors than compute with them where it runs."""
    handles = rule.keeps_arguments or rule.leaves or rule.moves or rule.takes_device or rule.shaped_like
    return handles or rule.needs_values or rule.new_memory or rule.resizes or rule.lists
