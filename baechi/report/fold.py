"""Layers folded by module: what lies on a device, in few words.

encoder                  all layers of a module
layers.0-13              all layers of modules that follow each other by number
decoder (3 of 8)         some of its layers
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph

EVERYTHING = "everything"


@dataclass(frozen=True)
class Fold:
    """Layers under one module's name.

    Args:
        module: its qualified name; `""` is the model.
        here: how many of its layers are meant.
        of: how many it has.
        last: number of the last module, if several follow each other by number.
    """

    module: str
    here: int
    of: int
    last: str = ""

    def __str__(self) -> str:
        name = (self.module or EVERYTHING) + (f"-{self.last}" if self.last else "")
        if self.here == self.of:
            return name
        return f"{self.module or 'the model'} ({self.here} of {self.of} layers)"


def fold(graph: LayerGraph, layers: Iterable[str], limit: int = 8) -> list[Fold]:
    """Layers in few words."""
    of: dict[str, int] = {}
    here: dict[str, int] = {}
    meant = {name for name in layers if graph.costs(name).kind == "layer"}
    ordered = [name for name, costs in graph.placed_costs() if costs.kind == "layer"]
    for name in ordered:
        for prefix in prefixes(module_of(graph, name)):
            of[prefix] = of.get(prefix, 0) + 1
            here[prefix] = here.get(prefix, 0) + (name in meant)
    modules = dict.fromkeys(module_of(graph, name) for name in ordered if name in meant)
    deepest = max([module.count(".") + 1 for module in modules if module], default=0)
    runs: list[Fold] = []
    for depth in range(deepest, -1, -1):
        folds = dict.fromkeys(_fold(module, depth, here, of) for module in modules)
        runs = _runs(list(folds))
        if len(runs) <= limit:
            break
    return runs


def _fold(module: str, depth: int, here: dict[str, int], of: dict[str, int]) -> Fold:
    """The largest module around a module that is meant as a whole; else that of a depth."""
    for prefix in prefixes(module):
        if here[prefix] == of[prefix] or prefix.count(".") + (prefix != "") == depth:
            return Fold(prefix, here[prefix], of[prefix])
    return Fold(module, here[module], of[module])


def _runs(folds: Sequence[Fold]) -> list[Fold]:
    """Whole modules whose numbers follow each other, as one."""

    def key(pair: tuple[int, Fold]) -> tuple[str, int]:
        place, fold = pair
        parent, number = _number(fold.module)
        return (parent, place - number) if fold.here == fold.of and number >= 0 else ("", -1 - place)

    found = []
    for _, pairs in groupby(enumerate(folds), key):
        run = [fold for _, fold in pairs]
        last = run[-1].module.rpartition(".")[2] if len(run) > 1 else ""
        counts = sum(fold.here for fold in run), sum(fold.of for fold in run)
        found.append(replace(run[0], here=counts[0], of=counts[1], last=last))
    return found


def _number(module: str) -> tuple[str, int]:
    parent, _, last = module.rpartition(".")
    return parent, int(last) if last.isdecimal() else -1


def module_of(graph: LayerGraph, name: str) -> str:
    """The module that a node belongs to: a layer's own, and that whose code glue is; `""` is the model."""
    if name.startswith("glue:"):
        return name.removeprefix("glue:").rpartition("/")[0]
    module = graph.costs(name).module
    module = name.partition("#")[0] if module is None else str(module)
    return "" if module == ROOT else module


def prefixes(module: str) -> list[str]:
    """`a.b.c` > ``, `a`, `a.b`, `a.b.c`."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]
