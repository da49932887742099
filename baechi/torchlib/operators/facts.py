"""What operators do, as their schemas, their tags, torch's own formulas and the table say.

`facts_of` looks at an operator once; capture asks while it watches a model, and the emulated
cluster at every operation, so both mean the same by a write, a kernel, a flop.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from baechi.torchlib.operators.rule import Rule
from baechi.torchlib.operators.table import HOST_ARGUMENTS, rule_of
from baechi.torchlib.private.operators import has_kernel, schema_of

_TORCH = frozenset({"aten", "prim", "prims"})

_known_flops: dict[tuple[Any, ...], int] = {}
_FLOPS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an operator.

    Args:
        name: without namespace and overload.
        kernel: whether it computes something; views, queries and allocations do not.
        aliases: whether its results are views of its arguments.
        reshapes: whether it changes in place how its argument sees its memory (`transpose_`), and no number.
        writes: positions and names of the arguments that it writes in place.
        returns_written: whether its results are what it wrote.
        waits: whether the host must see its result: a number, or a shape that depends on values.
        host_arguments: positions of arguments that may lie on the host though others do not.
        rule: its row of the table.
    """

    name: str
    kernel: bool
    aliases: bool
    reshapes: bool
    writes: tuple[tuple[int, str], ...]
    returns_written: bool
    waits: bool
    host_arguments: tuple[int, ...]
    rule: Rule


@cache
def facts_of(func: Any) -> Facts:
    """What is known of an operator."""
    name = func.overloadpacket.__name__
    rule = rule_of(name)
    schema = schema_of(func)
    returns = schema.returns
    aliased = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    aliases = rule.views or (aliased and not rule.fresh)
    said = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    # a composite operator writes nothing itself: those that it calls do
    names = rule.writes if rule.writes and not is_composite(func) else ()
    unsaid = [(i, a.name) for i, a in enumerate(schema.arguments) if a.name in names]
    reshapes = torch.Tag.inplace_view in func.tags and not (rule.new_memory or rule.resizes)
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return Facts(
        name=name,
        kernel=not (aliases or reshapes) and rule.computes,
        aliases=aliases,
        reshapes=reshapes,
        writes=(*said, *unsaid),
        returns_written=bool(returns) and all(r.alias_info and r.alias_info.is_write for r in returns),
        waits=bool(tags & set(func.tags)),
        host_arguments=tuple(i for i, a in enumerate(schema.arguments) if a.name in HOST_ARGUMENTS),
        rule=rule,
    )


@cache
def is_composite(func: Any) -> bool:
    """Whether an operator only calls other ones."""
    return bool(has_kernel(func.name(), "CompositeImplicitAutograd"))


@cache
def notes_views(func: Any) -> bool:
    """Whether torch notes what is a view, and what is written, before it runs an operator."""
    return bool(has_kernel(func.name(), "ADInplaceOrView"))


def host_waits(facts: Facts, args: tuple[Any, ...]) -> bool:
    """Whether the host must see a result before it goes on."""
    masks = facts.rule.masks
    if masks is None or not facts.waits:
        return facts.waits
    return any(index.dtype in (torch.bool, torch.uint8) for index in flat(args[masks : masks + 1]))


def writes_of(facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes in place."""
    for position, name in facts.writes:
        yield from flat((args[position] if position < len(args) else kwargs.get(name),))


def may_lie_on_host(facts: Facts, args: Any, tensor: torch.Tensor) -> bool:
    """Whether an argument may lie on the host while the others lie on a device (indices may)."""
    positions = facts.host_arguments
    return any(tensor is item for i in positions if i < len(args) for item in flat((args[i],)))


def draws(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call takes random numbers from the default generator."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    random = facts_of(func).rule.random
    if random == "if dropout":
        position = next(i for i, a in enumerate(schema_of(func).arguments) if a.name == "dropout_p")
        return bool(args[position] if position < len(args) else kwargs.get("dropout_p", 0.0))
    return random != "never"


def drops(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call of a torch function takes random numbers since it is given a probability to drop."""
    if rule_of(name).random != "if dropout":
        return False
    return draws(getattr(torch.ops.aten, name).default, args, kwargs)


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of one call, where a formula is known; a multiply-add counts 2."""
    formula = facts_of(func).rule.flops
    if formula is not None:
        return int(formula(*args, **kwargs))
    formula = flop_registry.get(func.overloadpacket)
    if formula is None:
        return 0
    made = result if isinstance(result, (tuple, list)) else [result]  # a gradient not asked for is None
    key = (func, *[t.shape for t in flat(args)], *[getattr(one, "shape", None) for one in made])
    if key not in _known_flops:
        if len(_known_flops) >= _FLOPS_KEPT:
            _known_flops.clear()
        _known_flops[key] = int(formula(*args, **kwargs, out_val=result))
    return _known_flops[key]


def is_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call launches a kernel where its tensors lie."""
    if not facts_of(func).kernel:
        return False
    # constants that torch's own code makes in passing stay on the host; it says nothing of pinning
    return "pin_memory" in kwargs or bool(flat([*args, *kwargs.values()]))


def is_uncounted(func: Any) -> bool:
    """Whether an operator computes a lot, and no formula says how much."""
    rule = facts_of(func).rule
    if rule.flops is not None or func.overloadpacket in flop_registry:
        return False
    return func.namespace not in _TORCH or rule.heavy


def bytes_of(facts: Facts, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]) -> int:
    """Bytes that one call reads and writes."""
    if not facts.kernel:
        return 0
    returned = sum([tensor.numel() * tensor.element_size() for tensor in made])
    if facts.rule.reads_result_only:
        return 2 * returned
    return returned + sum([tensor.numel() * tensor.element_size() for tensor in given])


def flat(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results: by themselves, or in lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found
