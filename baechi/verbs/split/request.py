"""What `distribute(split=)` asks for: layers in shards, inputs in microbatches."""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from torch import nn

from baechi.records.pipeline.pipeline import ITEMS
from baechi.run.pipeline.batch.partition import Split
from baechi.run.pipeline.walk import TARGET
from baechi.split.spec import BatchSpec, Layers, check_number


def asked_to_split(split: Any, model: nn.Module, *, microbatches: bool) -> tuple[Layers | None, Split | None]:
    """What `distribute(split=)` asks for: layers in shards, or inputs in microbatches."""
    if split is None or split == "auto":
        return split, None
    if not isinstance(split, Mapping):
        raise ValueError(f"split is {split!r}: it takes 'auto', or a dict such as {{'head': 4}}, by layer")
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    unknown = [name for name in split if name not in modules]
    if microbatches:
        layers = {name: how for name, how in split.items() if name in modules and not _is_of_input(how)}
        inputs = {name: how for name, how in split.items() if name not in layers}
        _check_shards(layers)
        _check_inputs(inputs, model, modules)
        return layers or None, inputs if inputs or not layers else None
    if not split:
        return None, split
    if not unknown:
        _check_shards(split)
        return split, None
    close = get_close_matches(str(unknown[0]), modules, n=1)
    hint = f": is it {close[0]!r}?" if close else "; inputs are split with microbatches: say how many"
    raise ValueError(f"split names {unknown[0]!r}, which is no layer of this {type(model).__name__}{hint}")


def _check_shards(layers: Layers) -> None:
    """Raise if a layer is to be split into no number of shards; the rest is known once it is captured."""
    if isinstance(layers, Mapping):
        for name, how in layers.items():
            if isinstance(how, (int, float, str)):
                check_number(how, f"the number of shards of {name}")


def _check_inputs(inputs: Split, model: nn.Module, modules: list[str]) -> None:
    """Raise if a name is of no input: what it says would be of nothing."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    known = [*[one.name for one in parameters], TARGET]
    for name in inputs:
        first = name.partition(".")[0]
        if first not in known and not first.isdigit():
            close = get_close_matches(first, [*known, *modules], n=1)
            hint = f": is it {close[0]!r}?" if close else f", which takes {', '.join(known[:-1])}"
            raise ValueError(
                f"split names {name!r}, which is no layer and no input of this {type(model).__name__}{hint}"
            )


def _is_of_input(how: Any) -> bool:
    """Whether that can be said of inputs only."""
    parts = isinstance(how, (list, tuple)) and not all(isinstance(one, BatchSpec) for one in how)
    return how is None or how == ITEMS or callable(how) or parts


def refuse_layers_with(layers: Layers | None, *, plan: object) -> None:
    """Raise if layers are to be split where a plan was made before."""
    if layers is not None and plan is not None:
        raise ValueError("a plan says which layers are split: leave split= out, or the plan")
