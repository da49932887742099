"""What a microbatch's code writes to attributes and containers of modules is its own.

    lane 0   self.kept = x0 ─┐ stops                              ─▶ reads self.kept: x0
    lane 1                   └▶ self.kept = x1 ─┐ stops
             the module      as before the step, between the two

Without this a layer would read what another microbatch left for it. Each microbatch begins with what was
there before the step; what the last one wrote stays. So a table (a module's attributes, a container, an
object) that a task wrote is put back when the task is over, and is as the microbatch left it in its next one.

- Attributes of modules: a write is told when it happens, since comparing all of them would take long.
- Containers and objects of the user's that are there when a step begins: all are compared after each task.
- Torch's own tables (of hooks, say): the first step compares all of them, later ones what it wrote.

Tensors are shared; see `shared_tensors`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch import nn

from baechi.errors import BaechiError
from baechi.run.pipeline.lanes.shared_tensors import SharedTensors, values_of_user
from baechi.torchlib.modules.as_found import Keeper
from baechi.torchlib.modules.attribute_writes import attribute_writes
from baechi.torchlib.modules.tables import Slots, content_of, differ, refill
from baechi.torchlib.private.modules import buffer_table, parameter_table, submodule_table


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
    """

    def __init__(
        self, model: nn.Module, known: WrittenTables, microbatches: int, layers: Mapping[str, int | None]
    ) -> None:
        self._known = known
        self.learns = known.tables is None
        named = dict(model.named_modules())
        values = {name: values_of_user(module) for name, module in named.items()}
        self._modules = {id(module): module for module in named.values()}
        self._attributes = [_Attributes(module) for module in self._modules.values()]
        users = list(tables_of_user(named, values))
        self._users = {_key_of(table) for _, table in users}
        self._before: dict[int, tuple[Any, Any]] = {}
        for table in attribute_tables(model) if known.tables is None else known.tables:
            self._watch(table)
        for _, table in users:
            self._watch(table)
        self._written: list[dict[int, Any]] = [{} for _ in range(microbatches)]
        self._ever: dict[int, Any] = {}  # also what is put back before the step is over
        self._set: dict[int, nn.Module] = {}
        self.tensors = SharedTensors(named, values, users, layers)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within this context tasks may run. It may be entered again, for those of `backward()`."""
        self._before = {key: (table, content_of(table)) for key, (table, _) in self._before.items()}
        self.tensors.begin()
        with attribute_writes(self._told):
            yield

    @contextmanager
    def of(self, microbatch: int, run: int | None) -> Iterator[None]:
        """Within this context, the modules are as the microbatch left them.

        Args:
            microbatch: its number.
            run: what it runs; None in backward.
        """
        written, self.tensors.run = self._written[microbatch], run
        for key, content in written.items():
            refill(self._before[key][0], content)
        try:
            yield
        finally:
            for key, (table, before) in self._before.items():
                now = content_of(table)
                if differ(now, before):
                    self._ever[key] = table
                    written[key] = now
                    refill(table, before)
                else:
                    written.pop(key, None)
        self.tensors.look(run, list((self._modules if self.learns else self._set).values()))

    def finish(self) -> None:
        """Forward is over: what the last microbatch wrote stays.

        Raises:
            BaechiError: something was written unseen.
        """
        if self.learns:
            own = {id(vars(module)) for module in self._modules.values()} | self._users
            self._known.tables = [table for key, table in self._ever.items() if key not in own]
        changed = [name for attributes in self._attributes for name in attributes.changed()]
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

    def _told(self, module: nn.Module) -> None:
        """An attribute of a module is about to be written: of this model, or of another one."""
        if id(module) in self._modules and id(module) not in self._set:
            self._set[id(module)] = module
            for table in (vars(module), parameter_table(module), submodule_table(module)):
                self._watch(table)


class _Attributes:
    """The attributes of a module as they were before a step."""

    __slots__ = ("_keys", "_module", "_values")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._keys, self._values = list(vars(module)), list(vars(module).values())

    def changed(self) -> list[str]:
        """The attributes that are not as they were, in words."""
        own = vars(self._module)
        if len(own) == len(self._values) and all(map(is_, own.values(), self._values)):
            return []
        before = dict(zip(self._keys, self._values, strict=True))
        names = [n for n in {**before, **own} if before.get(n, before) is not own.get(n, own)]
        return [f"{type(self._module).__name__}.{name}" for name in names]


def _key_of(table: Any) -> int:
    return id(table.owner if isinstance(table, Slots) else table)


def attribute_tables(model: nn.Module) -> list[Any]:
    """What a model's code may write: attributes of modules and objects, and containers, but not buffers.

    Args:
        model: the model.
    """
    keeper = Keeper("none")
    for module in model.modules():
        keeper.keep(module)
    shared = {id(buffer_table(module)) for module in model.modules()}
    return [table for table, _ in keeper.containers if id(table) not in shared]


def tables_of_user(
    modules: Mapping[str, nn.Module], values: Mapping[str, Sequence[tuple[str, Any]]]
) -> Iterator[tuple[str, Any]]:
    """Containers and attributes of objects that modules have, and no tables of torch's.

    Args:
        modules: a model's modules, by name.
        values: what `values_of_user` found in each.

    Yields:
        The attribute that leads there, and the table.
    """
    keeper = Keeper("none")
    keeper.seen.update({id(module): module for module in modules.values()})
    for name, found in values.items():
        known = len(keeper.containers)
        for key, value in found:
            keeper.keep(value)
            if len(keeper.containers) > known:
                for table, _ in keeper.containers[known:]:
                    yield f"{name}.{key}".lstrip("."), table
                known = len(keeper.containers)
