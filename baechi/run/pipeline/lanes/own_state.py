"""What a microbatch's code writes to attributes and containers of modules is its own.

    lane 0   self.kept = x0 ─┐ stops                              ─▶ reads self.kept: x0
    lane 1                   └▶ self.kept = x1 ─┐ stops
             the module      as before the step, between the two

Without this a layer would read what another microbatch left for it. The first step looks at everything that
is reachable from the model's modules. Later steps look after what was written then and after all containers,
and at the end whether other attributes were written. Each microbatch begins with what was there before the
step; what the last one wrote stays.

Buffers, and tensors that are written in place, are shared in the order of the microbatches: running
statistics. That is right if one layer, in one run, reads and writes them; everything else is refused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.run.step.loans import version_of
from baechi.torchlib.modules.as_found import Keeper
from baechi.torchlib.modules.tables import content_of, differ, refill, tables_of
from baechi.torchlib.private.modules import buffer_table


class WrittenTables:
    """What of a model is written in forward, or may be, learned in the first step.

    Attributes:
        tables: attributes (`__dict__`) that were written, and all containers of the user's: a later step may
            write one first, and take out what it put in. None before the first step.
    """

    def __init__(self) -> None:
        self.tables: list[Any] | None = None


class OwnState:
    """What each microbatch of a step wrote.

    Args:
        model: the model.
        known: what was learned of it; this step adds to it if it is the first.
        microbatches: how many.
        layers: the names of modules that are layers.

    Attributes:
        learns: whether this is the first step.
    """

    def __init__(
        self, model: nn.Module, known: WrittenTables, microbatches: int, layers: frozenset[str]
    ) -> None:
        self._known = known
        self.learns = known.tables is None
        tables = attribute_tables(model) if known.tables is None else known.tables
        self._quiet = _tables_of_modules(model) if self.learns else frozenset()
        self._before = [(table, content_of(table)) for table in tables]
        self._written: list[dict[int, Any]] = [{} for _ in range(microbatches)]
        self._ever: set[int] = set()  # also what is put back before the step is over
        self._attributes = [] if self.learns else [_Attributes(module) for module in model.modules()]
        self._tensors = list(_tensors(model, layers)) if self.learns else []

    @contextmanager
    def of(self, microbatch: int, run: int | None) -> Iterator[None]:
        """Within this context, the modules are as the microbatch left them.

        Args:
            microbatch: its number.
            run: what it runs; None in backward.
        """
        written = self._written[microbatch]
        for number, content in written.items():
            refill(self._before[number][0], content)
        try:
            yield
        finally:
            for number, (table, before) in enumerate(self._before):
                now = content_of(table)
                if differ(now, before):
                    self._ever.add(number)
                    written[number] = now
                    refill(table, before)
                else:
                    written.pop(number, None)
        for tensor in self._tensors:
            tensor.look(run)

    def finish(self) -> None:
        """The step is over: what the last microbatch wrote stays.

        Raises:
            BaechiError: something was written that the first step did not write.
        """
        if self.learns:
            self._known.tables = [
                table
                for number, (table, _) in enumerate(self._before)
                if number in self._ever or id(table) not in self._quiet
            ]
        changed = [name for attributes in self._attributes for name in attributes.changed(self._before)]
        if changed:
            self._known.tables = None  # the next step learns it
            raise BaechiError(
                f"microbatches may have read each other's attributes in this step: {', '.join(changed[:5])} "
                "changed, and did not in the steps before. Run the step again"
            )
        for number, content in self._written[-1].items():
            refill(self._before[number][0], content)


class _Attributes:
    """The attributes of a module as they were before a step."""

    __slots__ = ("_keys", "_module", "_values")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._keys, self._values = list(vars(module)), list(vars(module).values())

    def changed(self, known: list[tuple[Any, Any]]) -> list[str]:
        """The attributes that are not as they were, in words."""
        own = vars(self._module)
        if len(own) == len(self._values) and all(map(is_, own.values(), self._values)):
            return []
        if any(table is own for table, _ in known):
            return []
        before = dict(zip(self._keys, self._values, strict=True))
        names = [n for n in {**before, **own} if before.get(n, before) is not own.get(n, own)]
        return [f"{type(self._module).__name__}.{name}" for name in names]


class _Tensors:
    """The tensors in one table of a module, its buffers or its attributes: in which runs they are written."""

    def __init__(self, name: str, table: Mapping[str, Any], *, in_layer: bool) -> None:
        self._name, self._table, self._in_layer = name, table, in_layer
        self._runs: set[int] = set()
        self._before = self._now()

    def look(self, run: int | None) -> None:
        """Note whether the run wrote one.

        Args:
            run: its index; None for backward, which writes where code of a checkpoint runs again.

        Raises:
            BaechiError: microbatches cannot keep it apart.
        """
        now = self._now()
        if now == self._before:
            return
        changed = next(key for key in {**now, **self._before} if now.get(key) != self._before.get(key))
        self._before = now
        if run is None:
            raise BaechiError(
                f"{self._name}.{changed}".lstrip(".")
                + " is written when backward runs a checkpoint's code again: microbatches would read it in "
                "another order. Use recompute= in place of the model's own checkpoints, or microbatches=1"
            )
        self._runs.add(run)
        if self._in_layer and len(self._runs) == 1:
            return
        raise BaechiError(
            f"{self._name}.{changed}".lstrip(".")
            + " is written in forward, and the code may read it elsewhere than in one call of one layer: "
            "microbatches would read each other's. Keep it in a layer that is called once, or use "
            "microbatches=1"
        )

    def _now(self) -> dict[str, tuple[int, int]]:
        found = [(key, value) for key, value in self._table.items() if isinstance(value, torch.Tensor)]
        return {key: (id(value), version_of(value)) for key, value in found}


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


def _tables_of_modules(model: nn.Module) -> frozenset[int]:
    """The `id`s of what each module has, be it written or not: its attributes, and torch's own tables.

    Most of torch's tables are of a class that has attributes itself (`OrderedDict`).
    """
    torchs = frozenset(vars(nn.Module()))
    own = [vars(module) for module in model.modules()]
    inside = [value for table in own for key, value in table.items() if key in torchs]
    return frozenset(map(id, [*own, *[table for value in inside for table in tables_of(value)]]))


def _tensors(model: nn.Module, layers: frozenset[str]) -> Iterator[_Tensors]:
    for name, module in model.named_modules():
        in_layer = any(name == layer or name.startswith(f"{layer}.") for layer in layers)
        yield _Tensors(name, buffer_table(module), in_layer=in_layer)
        attributes = {key: value for key, value in vars(module).items() if isinstance(value, torch.Tensor)}
        if attributes:
            yield _Tensors(name, attributes, in_layer=in_layer)
