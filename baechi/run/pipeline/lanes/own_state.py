"""What a microbatch's code writes to attributes and containers of modules is its own.

    lane 0   self.kept = x0 ─┐ stops                              ─▶ reads self.kept: x0
    lane 1                   └▶ self.kept = x1 ─┐ stops
             the module      as before the step, between the two

Without this a layer would read what another microbatch left for it. Each microbatch begins with what was
there before the step; what the last one wrote stays. So a table (a module's attributes, a container, an
object) that a task wrote is put back when the task is over, and is as the microbatch left it in its next one.

- Attributes of modules: a write is told when it happens, since comparing all of them would take long.
- Containers and objects of the user's that are there when a step begins: all are compared after each task.
- Arrays that are no tensors (numpy's), if they are small: as containers, number by number.
- Torch's own tables (of hooks, say): the first step compares all of them, later ones what it wrote.

Tensors are shared; see `shared_tensors`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch import nn

from baechi.errors import BaechiError
from baechi.run.pipeline.lanes.shared_tensors import SharedTensors, values_of_user
from baechi.run.pipeline.lanes.user_state import UserState, attribute_tables, state_of_user
from baechi.torchlib.modules.attribute_writes import attribute_writes
from baechi.torchlib.modules.tables import (
    Numbers,
    Slots,
    Together,
    content_of,
    has_changed,
    refill,
)
from baechi.torchlib.private.modules import parameter_table, submodule_table


class WrittenTables:
    """What of a model is written in forward unseen, as far as steps have shown it.

    Attributes:
        tables: torch's own tables that were written. None before the first step.
    """

    def __init__(self) -> None:
        self.tables: list[Any] | None = None


class OwnState:
    """What each microbatch of a step wrote.

    Args:
        model: the model.
        known: what was learned of it; this step adds to it.
        microbatches: how many.
        layers: by module that is a layer, its run; None if it has several.

    Attributes:
        learns: whether this is the first step.
        tensors: what microbatches share.
        generators: those of the model's own, of which each microbatch has a state (`random_states`).
    """

    def __init__(
        self, model: nn.Module, known: WrittenTables, microbatches: int, layers: Mapping[str, int | None]
    ) -> None:
        self._known = known
        self.learns = known.tables is None
        named = dict(model.named_modules())
        self._modules: dict[int, nn.Module] = {}
        self._attributes: list[tuple[nn.Module, list[str], list[Any]]] = []
        """By module, its attributes, and what they were before the step."""
        values: dict[str, list[tuple[str, Any]]] = {}
        for name, module in named.items():
            values[name] = values_of_user(module)
            self._modules[id(module)] = module
            self._attributes.append((module, list(vars(module)), list(vars(module).values())))
        users = state_of_user(named, values) if any(values.values()) else UserState()
        self._users = set(map(_key_of, users.all))
        self.generators = users.generators
        self._before: dict[int, tuple[Any, Any]] = {}
        self._together = Together(())
        self._apart: list[int] = []
        """The keys of tables that are not asked together with others."""
        for table in (*(attribute_tables(model) if known.tables is None else known.tables), *users.all):
            self._watch(table)
        self._written: list[dict[int, Any]] = []
        """By microbatch, what tables that it wrote hold."""
        for _ in range(microbatches):
            self._written.append({})
        self._ever: dict[int, Any] = {}  # also what is put back before the step is over
        self._set: dict[int, nn.Module] = {}
        self.tensors = SharedTensors(named, values, users.tables, layers)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within this context tasks may run. It may be entered again, for those of `backward()`."""
        for key, (table, _) in self._before.items():
            self._before[key] = table, content_of(table)
        self._together = Together([table for table, _ in self._before.values()])
        self._apart = list(map(_key_of, self._together.others))
        self.tensors.begin()
        with attribute_writes(self._told):
            yield

    def enter(self, microbatch: int, run: int | None) -> None:
        """From now on the modules are as a microbatch left them."""
        self.tensors.run = run
        for key, content in self._written[microbatch].items():
            refill(self._before[key][0], content)

    def leave(self, microbatch: int, run: int | None) -> None:
        """From now on the modules are as before the step."""
        written = self._written[microbatch]
        # most often a task wrote to none of them: asking each takes ten times as long
        keys = self._apart if not written and self._together.hold() else list(self._before)
        for key in keys:
            table, before = self._before[key]
            if has_changed(table, before):
                self._ever[key] = table
                written[key] = content_of(table)
                refill(table, before)
            elif key in written:
                del written[key]
        self.tensors.look(run, list((self._modules if self.learns else self._set).values()))

    def put_back(self) -> None:
        """The step failed: the modules are as before it."""
        for table, before in self._before.values():
            if has_changed(table, before):
                refill(table, before)

    def finish(self) -> None:
        """Forward is over: what the last microbatch wrote stays."""
        if self.learns:
            own = {id(vars(module)) for module in self._modules.values()} | self._users
            self._known.tables = [table for key, table in self._ever.items() if key not in own]
        changed: list[str] = []
        for module, names, values in self._attributes:
            own_now = vars(module)
            if len(own_now) != len(values) or not all(map(is_, own_now.values(), values)):
                changed += _changed(module, dict(zip(names, values, strict=True)))
        changed += self.tensors.unseen(self._modules.values())
        if changed:
            self._known.tables = None  # the next step learns it
            raise BaechiError(
                f"microbatches may have read each other's attributes in this step: {', '.join(changed[:5])} "
                "changed, and not by an assignment. Run the step again"
            )
        for key in self._ever:  # a backward that comes later begins with what the last one left
            for written in self._written:
                written.setdefault(key, self._before[key][1])
            refill(self._before[key][0], self._written[-1][key])

    def _watch(self, table: Any) -> None:
        """Keep a table apart; what is in it now was there before the step."""
        if _key_of(table) not in self._before:
            self._before[_key_of(table)] = table, content_of(table)
            self._apart.append(_key_of(table))

    def _told(self, module: nn.Module) -> None:
        """An attribute of a module is about to be written: of this model, or of another one."""
        if id(module) in self._modules and id(module) not in self._set:
            self._set[id(module)] = module
            for table in (vars(module), parameter_table(module), submodule_table(module)):
                self._watch(table)


def _changed(module: nn.Module, before: dict[str, Any]) -> list[str]:
    """The attributes of a module that are not as they were, in words."""
    own = vars(module)
    names = [name for name in {**before, **own} if before.get(name, before) is not own.get(name, own)]
    return [f"{type(module).__name__}.{name}" for name in names]


def _key_of(table: Any) -> int:
    return id(table.owner if isinstance(table, (Slots, Numbers)) else table)
