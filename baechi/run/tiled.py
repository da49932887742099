"""Split layers: their tiles are made when a plan is assigned, and run in place of the layer's `forward`.

    head(x)   ──▶   tile 0(x, weight[0]) on cpu:0 ──┐
                    tile 1(x, weight[1]) on cpu:1 ──┴──▶ join ──▶ output

Tiles and joins are layers like any others: they wait, launch and transfer as the plan says. They have no
weights of their own, so the model's modules, keys and parameters are those that it had. Functional ops that
read a weight in pieces run as the layers that they stand for.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.errors import SplitTensorError
from baechi.records.plan import Plan
from baechi.run.model_runtime import ModelRuntime, OpenStep
from baechi.run.state.regions import function_code
from baechi.run.unjoined.value import Unjoined, is_joined, join_at, sizes_of, unjoined
from baechi.split.cuts import Cut, cuts_of
from baechi.split.dimension import Given, SplitDimension, SplitRule
from baechi.split.piecewise import WEIGHT_OPS
from baechi.split.table import rule_named, rule_of
from baechi.split.tiles import Join, Tile, tiles_of
from baechi.torchlib.split_tensors.files import teach_saving
from baechi.torchlib.split_tensors.tensor import SplitTensor
from baechi.torchlib.tensors.pytree import tensors_in

_TILED = "_baechi_tiled"
_WEIGHT_OPS = "_baechi_weight_ops"
"""Of a split layer: by weight, the functional ops that read it, in the order of the code."""

_ARGUMENTS = {"linear": ("input", "weight", "bias"), "embedding": ("input", "weight", "padding_idx")}
"""By function, its first arguments."""


class WeightOp(nn.Module):
    """Stands for a functional op that reads the weight of a split layer: `F.linear(x, embed.weight)`.

    Args:
        function: its name.
    """

    padding_idx = None

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function


@dataclass
class Tiled:
    """What runs in place of a split layer's `forward`.

    Args:
        tiles: in order.
        join: makes the output of theirs.
        weights: names of the layer's weights, in the order in which tiles take them.
        dimension: along which the layer is split.
        cuts: by weight that is cut, where.
        joins: whether their outputs are joined at once; else only where something needs the whole.
        takes_all: see `SplitRule`.
    """

    tiles: Sequence[Tile]
    join: Join
    weights: Sequence[str]
    dimension: SplitDimension
    cuts: Mapping[str, Cut]
    joins: bool = True
    takes_all: bool = False


def weight_ops(plan: Plan) -> dict[str, WeightOp]:
    """What stands for the functional ops that a plan splits.

    Args:
        plan: the plan.

    Returns:
        By the name that the plan has for them, in the order of the code.
    """
    tiles = [costs.tile for _, costs in plan.graph.placed_costs() if costs.tile and "function" in costs.tile]
    return {tile["of"]: WeightOp(tile["function"]) for tile in tiles}


def make_tiles(plan: Plan, modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Make the tiles and joins that a plan has.

    Args:
        plan: the plan.
        modules: the model's modules by qualified name.

    Returns:
        Tiles and joins by the names that the plan has for them.
    """
    made: dict[str, nn.Module] = {}
    ops = weight_ops(plan)
    joins = {costs.joins for _, costs in plan.graph.placed_costs()}
    cuts = cuts_of(plan.graph)
    for _, costs in plan.graph.placed_costs():
        if costs.tile is None or costs.tile["number"] or f"{costs.tile['of']}[0]" in made:
            continue
        name = costs.tile["of"]
        layer = ops.get(name) or modules[name]
        if isinstance(layer, WeightOp):
            rule: SplitRule | None = rule_named(WEIGHT_OPS[layer.function])
        else:
            rule = rule_of(type(layer))
        assert rule is not None  # the plan was matched
        dimension = rule.dims[costs.tile["dimension"]]
        tiles = tiles_of(layer, rule, costs.tile["dimension"], costs.tile["sizes"])
        names = tuple(rule.weights)
        own_cuts = {weight: cuts[f"{name}.{weight}"] for weight in costs.tile["cuts"]}
        tiled = Tiled(tiles, Join(dimension), names, dimension, own_cuts, name in joins, rule.takes_all)
        layer.__dict__[_TILED] = tiled
        made |= {f"{name}[{number}]": tile for number, tile in enumerate(tiles)}
        if tiled.joins:
            made[f"{name}[join]"] = tiled.join
        for weight in costs.tile["tied"]["weight"] if name in ops else ():
            owner, _, own = weight.rpartition(".")
            if owner in modules:
                modules[owner].__dict__.setdefault(_WEIGHT_OPS, {}).setdefault(own, []).append(layer)
    if made:
        for kind in {type(module) for module in modules.values()}:
            teach_saving(kind)
    return made


def tiled_of(module: nn.Module) -> Tiled | None:
    """What runs in place of a layer's `forward`; None if it is not split.

    Args:
        module: any module.
    """
    tiled: Tiled | None = module.__dict__.get(_TILED)
    return tiled


def drop_tiles(module: nn.Module) -> None:
    """Undo `make_tiles`.

    Args:
        module: any module.
    """
    for name in (_TILED, _WEIGHT_OPS):
        module.__dict__.pop(name, None)


def run_tiles(module: nn.Module, runtime: ModelRuntime, *args: Any, **kwargs: Any) -> Any:
    """Run the tiles of a layer, and join what they return.

    Args:
        module: the layer.
        runtime: its runtime; a step is open.
        *args, **kwargs: the layer's input.

    Raises:
        TypeError: it is given anything but one tensor, and its rule takes one.
    """
    tiled = tiled_of(module)
    assert tiled is not None
    glue = runtime.glue
    assert glue is not None
    glue.step.backend.spend("split_layer", glue.step.backend.host)
    given: list[Any] = [Given(args, kwargs)] if tiled.takes_all else [*args, *kwargs.values()]
    if not tiled.takes_all and (len(given) != 1 or not isinstance(given[0], torch.Tensor)):
        raise TypeError(
            f"a split {type(module).__name__} takes one tensor, and was given {len(given)} arguments: leave "
            "it out of split="
        )
    for name in module.__dict__.get(_WEIGHT_OPS, ()):
        runtime.weight_owners[id(getattr(module, name))] = module
    inputs = _shares(given[0], tiled)
    if inputs is None and any(isinstance(tensor, Unjoined) for tensor in tensors_in(given, {})):
        given = glue.joined(given)
    with runtime.aside():
        pieces = [_pieces(module, name, tiled, glue.step) for name in tiled.weights]
    takes, outputs = tiled.dimension.takes, []
    for number, tile in enumerate(tiled.tiles):
        own = [piece[number] for piece in pieces]
        while own and own[-1] is None:
            del own[-1]
        x = given[0] if inputs is None else inputs[number]
        if takes is not None and inputs is None:
            start, stop = tile.share.within(x.shape[takes])
            x = x.narrow(takes, start, stop - start)
        tile.training = module.training
        outputs.append(tile(x, *own))
    if tiled.joins:
        return tiled.join(*outputs)
    step = glue.step
    with glue.off():
        place = step.backend.place_of(outputs[0])
        join = functools.partial(join_at, step.backend, place)
        made = unjoined(outputs, tiled.dimension.axis, join, place, next(step.turns))
    return glue.joined(made) if function_code.depth else made  # what a Function returns, autograd has to know


def run_weight_op(runtime: ModelRuntime, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a functional op that was given a weight in pieces, as the layer that it stands for.

    Args:
        runtime: a step of it is open, and its glue mode is on.
        name: the function's name.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Returns:
        Its result; NotImplemented if the plan has no such op, or it is told what tiles do not do.
    """
    known = _ARGUMENTS.get(name, ())
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    weight, x, bias = given.pop("weight", None), given.pop("input", None), given.pop("bias", None)
    padding = given.pop("padding_idx", None)
    given.pop("norm_type", None)  # it says nothing without `max_norm`
    ops = [op for op in _ops_of(runtime, weight) if op.function == name]
    if not ops or len(args) > len(known) or any(given.values()) or isinstance(x, SplitTensor):
        return NotImplemented
    glue = runtime.glue
    assert glue is not None
    number = glue.weight_op_calls[name, id(weight)]
    op = ops[min(number, len(ops) - 1)]  # a call that the plan does not have is one more of the last one
    tiled = tiled_of(op)
    assert tiled is not None
    cut = isinstance(bias, SplitTensor)
    if cut and ("bias" not in tiled.dimension.cuts or bias.sizes != weight.sizes):
        return NotImplemented
    glue.weight_op_calls[name, id(weight)] += 1
    op.__dict__.update(weight=weight, bias=bias if cut else None)
    for tile in tiled.tiles:
        tile.options = {"padding_idx": None if padding is None else padding % len(weight)}
    made = run_tiles(op, runtime, x)
    return made if cut or bias is None else made + bias


def _ops_of(runtime: ModelRuntime, weight: Any) -> Sequence[WeightOp]:
    owner = runtime.weight_owners.get(id(weight))
    if owner is None:
        return ()
    ops: Mapping[str, Sequence[WeightOp]] = owner.__dict__.get(_WEIGHT_OPS, {})
    return next((own for name, own in ops.items() if getattr(owner, name) is weight), ())


def _shares(x: Any, tiled: Tiled) -> Sequence[torch.Tensor] | None:
    """What of an input in parts each tile takes; None if it is not cut as the tiles are."""
    takes = tiled.dimension.takes
    if not isinstance(x, Unjoined) or is_joined(x) or takes is None or x.axis != takes % x.dim():
        return None
    bounds = [tile.share.within(x.shape[x.axis]) for tile in tiled.tiles]
    return x.parts if sizes_of(x) == [stop - start for start, stop in bounds] else None


def _pieces(module: nn.Module, name: str, tiled: Tiled, step: OpenStep) -> Sequence[Any]:
    """What of a weight each tile is given: a piece; a whole weight goes to the first, or of rows to each."""
    owner, _, own_name = name.rpartition(".")
    weight = getattr(module.get_submodule(owner), own_name, None)
    if isinstance(weight, SplitTensor):
        cut = tiled.cuts.get(name)
        if cut is None or (weight.axis, weight.sizes) != (cut.axis % weight.dim(), cut.sizes):
            raise SplitTensorError(
                f"{name} of a split {type(module).__name__} was replaced by a weight that is cut elsewhere "
                f"({weight!r}): tie weights before their layers are split, or split the layers alike"
            )
        pieces, number = step.pieces_of(weight), len(tiled.tiles)
        several = tiled.dimension.values.get(name, 1) > 1
        return [tuple(pieces[start::number]) for start in range(number)] if several else pieces
    if weight is not None and name in tiled.dimension.cuts:
        raise SplitTensorError(
            f"{name} of a split {type(module).__name__} was replaced by a whole tensor of shape "
            f"{tuple(weight.shape)}: write into it (copy_, load_state_dict), or call baechi.restore first"
        )
    others = None if tiled.dimension.cuts else weight
    return [weight, *[others] * (len(tiled.tiles) - 1)]
