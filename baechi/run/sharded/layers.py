"""Split layers: their shards are made when a plan is assigned, and run in place of the layer's `forward`.

    head(x)   ──▶   shard 0(x, weight[0]) on cpu:0 ──┐
                    shard 1(x, weight[1]) on cpu:1 ──┴──▶ join ──▶ output

Shards and joins are layers like any others: they wait, launch and transfer as the plan says. They have no
weights of their own, so the model's modules, keys and parameters are those that it had. Functional ops that
read a sharded weight run as the layers that they stand for.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.errors import ShardedTensorError
from baechi.records.plan import Plan
from baechi.run.model_runtime import ModelRuntime, OpenStep
from baechi.run.sharded.output import ShardedOutput, is_joined, join_at, sharded_output
from baechi.run.state.regions import function_code
from baechi.split.cuts import Cut, cuts_of
from baechi.split.dimension import Given, SplitDimension, SplitRule
from baechi.split.layer_shard import Broadcast, Join, LayerShard, layer_shards
from baechi.split.table import rule_named, rule_of
from baechi.torchlib.shards.files import teach_saving
from baechi.torchlib.shards.table import WEIGHT_OPS
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.tensors.pytree import tensors_in

_SHARDED = "_baechi_sharded"
_WEIGHT_OPS = "_baechi_weight_ops"
"""Of a split layer: by weight, the functional ops that read it, in the order of the code."""

_ARGUMENTS = {"linear": ("input", "weight", "bias"), "embedding": ("input", "weight", "padding_idx")}
"""By function, its first arguments."""


class WeightOp(nn.Module):
    """Stands for a functional op that reads the weight of a split layer: `F.linear(x, embed.weight)`.

    Args:
        function: its name.
    """

    padding_idx: int | None = None

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function


@dataclass
class ShardedLayer:
    """What runs in place of a split layer's `forward`.

    Args:
        shards: in order.
        join: makes the output of theirs.
        weights: names of the layer's weights, in the order in which shards take them.
        options: names of the layer's attributes that shards need.
        dimension: along which the layer is split.
        cuts: by weight that is cut, where.
        joins: whether their outputs are joined at once; else only where something needs the whole.
        takes_all: see `SplitRule`.
        broadcast: sends the weights to shards that take rows; None if each has its own.
    """

    shards: Sequence[LayerShard]
    join: Join
    weights: Sequence[str]
    options: Sequence[str]
    dimension: SplitDimension
    cuts: Mapping[str, Cut]
    joins: bool = True
    takes_all: bool = False
    broadcast: Broadcast | None = None


def weight_ops(plan: Plan) -> dict[str, WeightOp]:
    """What stands for the functional ops that a plan splits."""
    shards = [
        costs.shard for _, costs in plan.graph.placed_costs() if costs.shard and "function" in costs.shard
    ]
    return {shard["of"]: WeightOp(shard["function"]) for shard in shards}


def make_shards(plan: Plan, modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Make the shards and joins that a plan has."""
    made: dict[str, nn.Module] = {}
    ops = weight_ops(plan)
    joins = {costs.joins for _, costs in plan.graph.placed_costs()}
    broadcasts = {costs.broadcasts for _, costs in plan.graph.placed_costs()}
    cuts = cuts_of(plan.graph)
    for _, costs in plan.graph.placed_costs():
        if costs.shard is None or costs.shard["number"] or f"{costs.shard['of']}[0]" in made:
            continue
        name = costs.shard["of"]
        layer = ops.get(name) or modules[name]
        if isinstance(layer, WeightOp):
            rule: SplitRule | None = rule_named(WEIGHT_OPS[layer.function])
        else:
            rule = rule_of(type(layer))
        assert rule is not None  # the plan was matched
        dimension = rule.dims[costs.shard["dimension"]]
        shards = layer_shards(layer, rule, costs.shard["dimension"], costs.shard["sizes"])
        own_cuts = {weight: cuts[f"{name}.{weight}"] for weight in costs.shard["cuts"]}
        sharded = ShardedLayer(
            shards,
            Join(dimension),
            tuple(rule.weights),
            tuple(rule.options),
            dimension,
            own_cuts,
            name in joins,
            rule.takes_all,
        )
        layer.__dict__[_SHARDED] = sharded
        made |= {f"{name}[{number}]": shard for number, shard in enumerate(shards)}
        if sharded.joins:
            made[f"{name}[join]"] = sharded.join
        if name in broadcasts:
            sharded.broadcast = made[f"{name}[broadcast]"] = Broadcast()
        for weight in costs.shard["tied"]["weight"] if name in ops else ():
            owner, _, own = weight.rpartition(".")
            if owner in modules:
                modules[owner].__dict__.setdefault(_WEIGHT_OPS, {}).setdefault(own, []).append(layer)
    if made:
        for kind in {type(module) for module in modules.values()}:
            teach_saving(kind)
    return made


def sharded_layer_of(module: nn.Module) -> ShardedLayer | None:
    """What runs in place of a layer's `forward`; None if it is not split."""
    sharded: ShardedLayer | None = module.__dict__.get(_SHARDED)
    return sharded


def drop_shards(module: nn.Module) -> None:
    """Undo `make_shards`."""
    for name in (_SHARDED, _WEIGHT_OPS):
        module.__dict__.pop(name, None)


def run_shards(module: nn.Module, runtime: ModelRuntime, *args: Any, **kwargs: Any) -> Any:
    """Run the shards of a layer, and join what they return."""
    sharded = sharded_layer_of(module)
    assert sharded is not None
    glue = runtime.glue
    assert glue is not None
    glue.step.backend.spend("split_layer", glue.step.backend.host)
    given: list[Any] = [Given(args, kwargs)] if sharded.takes_all else [*args, *kwargs.values()]
    if not sharded.takes_all and (len(given) != 1 or not isinstance(given[0], torch.Tensor)):
        raise TypeError(
            f"a split {type(module).__name__} takes one tensor, and was given {len(given)} arguments: leave "
            "it out of split="
        )
    _follow_options(module, sharded)
    for name in module.__dict__.get(_WEIGHT_OPS, ()):
        runtime.weight_owners[id(getattr(module, name))] = module
    inputs = _shares(given[0], sharded)
    if inputs is None and any(isinstance(tensor, ShardedOutput) for tensor in tensors_in(given, {})):
        given = glue.joined(given)
    with runtime.aside():
        weights = [_for_each(module, name, sharded, glue.step) for name in sharded.weights]
    if sharded.broadcast is not None:
        sharded.broadcast.training = module.training
        sent = sharded.broadcast(*[weight[0] for weight in weights])
        weights = [[weight] * len(sharded.shards) for weight in sent]
    takes, outputs = sharded.dimension.takes, []
    for number, shard in enumerate(sharded.shards):
        own = [weight[number] for weight in weights]
        while own and own[-1] is None:
            del own[-1]
        x = given[0] if inputs is None else inputs[number]
        if takes is not None and inputs is None:
            start, stop = shard.extent.within(x.shape[takes])
            x = x.narrow(takes, start, stop - start)
        shard.training = module.training
        outputs.append(shard(x, *own))
    if sharded.joins:
        return sharded.join(*outputs)
    step = glue.step
    with glue.off():
        place = step.backend.place_of(outputs[0])
        join = functools.partial(join_at, step.backend, place)
        made = sharded_output(outputs, sharded.dimension.axis, join, place, next(step.turns))
    return glue.joined(made) if function_code.depth else made  # what a Function returns, autograd has to know


def _follow_options(module: nn.Module, sharded: ShardedLayer) -> None:
    """Let shards compute with the layer's attributes as they are now: a slope may follow a schedule."""
    now = {name: getattr(module, name) for name in sharded.options}
    before = sharded.shards[0].options
    if all([before[name] is value for name, value in now.items()]):
        return
    rule = rule_of(type(module))
    refused = rule.refuses(module) if rule is not None else ""  # an op has none of its own
    if refused:
        raise ShardedTensorError(
            f"a split {type(module).__name__} was changed after it was split: {refused}. Set it back, or "
            "leave the layer out of split="
        )
    for shard in sharded.shards:
        shard.options = {**before, **now}


def run_weight_op(runtime: ModelRuntime, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a functional op that was given a sharded weight, as the layer that it stands for."""
    known = _ARGUMENTS.get(name, ())
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    weight, x, bias = given.pop("weight", None), given.pop("input", None), given.pop("bias", None)
    padding = given.pop("padding_idx", None)
    given.pop("norm_type", None)  # it says nothing without `max_norm`
    ops = [op for op in _ops_of(runtime, weight) if op.function == name]
    if not ops or len(args) > len(known) or any(given.values()) or isinstance(x, ShardedWeight):
        return NotImplemented
    glue = runtime.glue
    assert glue is not None
    number = glue.weight_op_calls[name, id(weight)]
    op = ops[min(number, len(ops) - 1)]  # a call that the plan does not have is one more of the last one
    sharded = sharded_layer_of(op)
    assert sharded is not None
    cut = isinstance(bias, ShardedWeight)
    if cut and ("bias" not in sharded.dimension.cuts or bias.sizes != weight.sizes):
        return NotImplemented
    glue.weight_op_calls[name, id(weight)] += 1
    op.__dict__.update(weight=weight, bias=bias if cut else None)
    op.padding_idx = None if padding is None else padding % len(weight)
    made = run_shards(op, runtime, x)
    return made if cut or bias is None else made + bias


def _ops_of(runtime: ModelRuntime, weight: Any) -> Sequence[WeightOp]:
    owner = runtime.weight_owners.get(id(weight))
    if owner is None:
        return ()
    ops: Mapping[str, Sequence[WeightOp]] = owner.__dict__.get(_WEIGHT_OPS, {})
    return next((own for name, own in ops.items() if getattr(owner, name) is weight), ())


def _shares(x: Any, sharded: ShardedLayer) -> Sequence[torch.Tensor] | None:
    """What of a sharded input each shard takes; None if it is not cut as the layer is."""
    takes = sharded.dimension.takes
    if not isinstance(x, ShardedOutput) or is_joined(x) or takes is None or x.axis != takes % x.dim():
        return None
    bounds = [shard.extent.within(x.shape[x.axis]) for shard in sharded.shards]
    return x.shards if list(x.sizes) == [stop - start for start, stop in bounds] else None


def _for_each(module: nn.Module, name: str, sharded: ShardedLayer, step: OpenStep) -> Sequence[Any]:
    """What of a weight each shard of a layer takes; of a whole the first one has all, or each (rows)."""
    owner, _, own_name = name.rpartition(".")
    weight = getattr(module.get_submodule(owner), own_name, None)
    if isinstance(weight, ShardedWeight):
        cut = sharded.cuts.get(name, weight)  # of a functional op's bias the plan says nothing
        alike = (weight.axis, weight.sizes) == (cut.axis % weight.dim(), cut.sizes)
        if name not in sharded.dimension.cuts or not alike:
            raise ShardedTensorError(
                f"{name} of a split {type(module).__name__} was replaced by a weight that is cut elsewhere "
                f"({weight!r}): tie weights before their layers are split, or split the layers alike"
            )
        own, number = step.shards_of(weight), len(sharded.shards)
        several = sharded.dimension.values.get(name, 1) > 1
        return [tuple(own[start::number]) for start in range(number)] if several else own
    if weight is not None and name in sharded.dimension.cuts:
        raise ShardedTensorError(
            f"{name} of a split {type(module).__name__} was replaced by a whole tensor of shape "
            f"{tuple(weight.shape)}: write into it (copy_, load_state_dict), or call baechi.restore first"
        )
    others = None if sharded.dimension.cuts else weight
    return [weight, *[others] * (len(sharded.shards) - 1)]
