"""Which module calls are layers: placed as a unit, however much happens inside."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn

from baechi.capture.watch.trace import Boundary, Call, Op, Trace
from baechi.torchlib.modules.fast_paths import FUSED, is_compiled
from baechi.torchlib.private.compiler import compiled_call

Names = Iterable[str | type[nn.Module]] | type[nn.Module]


@dataclass(frozen=True)
class Granularity:
    """The modules that are layers, by qualified name.

    Args:
        layers: a call of one of these, outside any other, is a layer.
        because: for those with modules inside, why they are kept whole.
        split: modules that are not kept whole, since the user said so.
    """

    layers: frozenset[str]
    because: Mapping[str, str] = field(default_factory=dict)
    split: frozenset[str] = frozenset()

    def layer_of(self, call: Call | None) -> Call | None:
        """The layer that a call is, or is inside of: the outermost one."""
        found = None
        while call is not None:
            if call.module in self.layers:
                found = call
            call = call.parent
        return found


def choose(model: nn.Module, trace: Trace, no_split: Names | None, split: Names | None) -> Granularity:
    """Decide which modules are layers.

    A layer is a module without children; a module that the user names; or one whose code reads
    weights (its own, or its children's behind their backs) while it calls no child that has
    weights, such as `nn.MultiheadAttention`. What torch fuses (`backend.fast_paths`) stays whole, and so
    does what was compiled in place, unless the user divides it.
    """
    modules = dict(model.named_modules())
    named, divided = named_modules(model, no_split, split)
    reads = "its code reads weights and calls no module that has any"
    because = {name: divisible(reads, trace.modules[name]) for name in _readers(modules, trace)}
    because |= {
        name: divisible("it is compiled in place", type(module).__name__)
        for name, module in modules.items()
        if name and compiled_call(module) is not None
    }
    because |= dict.fromkeys(named, "no_split_module_classes names it")
    in_one_kernel = "torch may compute it in one kernel; a module of your own, made of its layers, is divided"
    fixed = {name: in_one_kernel for name, module in modules.items() if isinstance(module, FUSED)}
    fixed |= {name: "it is compiled as a whole" for name, m in modules.items() if is_compiled(m)}
    leaves = {e.call.module for e in trace.events if isinstance(e, Boundary) and e.call.leaf}
    _refuse_split(divided, named, fixed | dict.fromkeys(leaves, "no module is inside of it"))
    because = {name: why for name, why in (because | fixed).items() if name not in divided}
    return Granularity(
        frozenset(leaves | because.keys()),
        {name: why for name, why in because.items() if name not in leaves},
        frozenset(divided),
    )


def named_modules(model: nn.Module, no_split: Names | None, split: Names | None) -> tuple[set[str], set[str]]:
    """The modules that the user wants kept whole, and divided."""
    modules = dict(model.named_modules())
    named = _named(modules, no_split or (), "no_split_module_classes")
    return named, _named(modules, split or (), "split_module_classes")


def divisible(why: str, class_name: str) -> str:
    """The reason why a module is kept whole, with the argument that decomposes it."""
    return f"{why}; split_module_classes=[{class_name!r}] divides it"


def _refuse_split(divided: set[str], named: set[str], fixed: Mapping[str, str]) -> None:
    for name in sorted(divided & named):
        raise ValueError(f"{name!r} is named in no_split_module_classes and in split_module_classes")
    for name in sorted(divided & fixed.keys()):
        raise ValueError(f"split_module_classes names {name!r}, which cannot be divided: {fixed[name]}")


def _named(modules: dict[str, nn.Module], given: Names, argument: str) -> set[str]:
    found: set[str] = set()
    chosen: tuple[str | type, ...] = (given,)  # type: ignore[assignment]
    if not isinstance(given, (str, type)) and isinstance(given, Iterable):
        chosen = tuple(given)
    if not all(isinstance(one, (str, type)) for one in chosen):
        raise ValueError(f"{argument} is {given!r}: it takes names of classes or modules, or classes")
    for wanted in chosen:
        if isinstance(wanted, str):
            match = {n for n, m in modules.items() if n == wanted or wanted in _class_names(m)}
        else:
            match = {n for n, m in modules.items() if isinstance(m, wanted)}
        if not match:
            classes = ", ".join(sorted({type(module).__name__ for module in modules.values()}))
            raise ValueError(
                f"{argument} names {wanted!r}, which is no class and no module of the model; "
                f"its classes are: {classes}"
            )
        found |= match
    return found


def _class_names(module: nn.Module) -> set[str]:
    classes = (cls for cls in type(module).__mro__ if issubclass(cls, nn.Module))
    return {cls.__name__ for cls in classes if cls is not nn.Module}


def _readers(modules: dict[str, nn.Module], trace: Trace) -> set[str]:
    """Modules that read weights themselves, and call no child that has any (the root excepted)."""
    owners: dict[int, set[str]] = {}
    for name, storage in trace.weights.items():
        owners.setdefault(id(storage), set()).add(name.rpartition(".")[0])
    readers = set()
    for event in trace.events:
        if isinstance(event, Op) and event.call.module and not event.call.leaf:
            call = event.call
            read = {owner for use in event.reads for owner in owners.get(id(use.storage), ())}
            if any(_below(owner, call.module) for owner in read) and not _calls_weights(modules, call):
                readers.add(call.module)
    return readers


def _below(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _calls_weights(modules: dict[str, nn.Module], call: Call) -> bool:
    called = (modules[name] for name in call.inside)
    return any(next(module.parameters(), None) is not None for module in called)
