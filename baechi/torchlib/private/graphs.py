"""Whole models as graphs: what captures a model's code, and what traces a graph with its backward.

Each name is looked up when a model is captured: the compiler takes seconds to import.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from traceback import FrameSummary
from typing import Any, NamedTuple

import torch
from torch import fx

from baechi.torchlib.private.fakes import FakeTensorMode
from baechi.torchlib.private.lookup import named
from baechi.torchlib.private.patches import COMMON_DEVICE

_PURPOSE = "capture models as graphs"
_ABSENT: Any = object()

_RESIZING = (
    *(f"upsample_{kind}" for kind in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")),
    *(f"{kind}{dim}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for dim in (1, 2, 3)),
    *(f"_upsample_{kind}2d_aa" for kind in ("bilinear", "bicubic", "lanczos")),
)
"""Torch's operators that resize images."""

_IN_PLACE = frozenset({f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")})


@cache
def _of(path: str, otherwise: Any = None) -> Any:
    return named(path, _PURPOSE) if otherwise is None else named(path, _PURPOSE, otherwise)


class Writes(NamedTuple):
    """What captured code writes to objects that were there before the call.

    Args:
        refused: a write that cannot be done again at each call: of something that is no constant, or of a
            number that is made of the one before. Empty if there is none.
        change: whether others change something: they set constants.
        buffers: whether buffers are assigned anew.
        stack: where what is refused is written.
        kept: attributes that are set to tensors which the call makes, by owner and name, and dicts that get
            such (no name). Owners are expressions of Python, of `L`, the local variables of what is captured.
        counter: owner and name of a whole number that the code makes of the one before, if that is refused.
    """

    refused: str
    change: bool
    buffers: bool = False
    stack: Sequence[FrameSummary] = ()
    kept: tuple[tuple[str, str | None], ...] = ()
    counter: tuple[str, str] | None = None


@contextmanager
def capturing(limit: int, quiet: frozenset[Any], counters: tuple[str, ...]) -> Iterator[None]:
    """While this is open, calls of compiled functions capture as programs need it: no shape is a variable.

    Args:
        limit: so many graphs are kept.
        quiet: functions that are left out.
        counters: where whole numbers lie that are variables.
    """
    known = _of("torch._dynamo.config").ignore_logging_functions
    with _patch(limit, frozenset(known | quiet)), _counting(counters):
        yield


@lru_cache(maxsize=16)
def _counting(counters: tuple[str, ...]) -> AbstractContextManager[Any]:
    found: AbstractContextManager[Any] = _of("torch.compiler.config").patch(
        dynamic_sources=",".join(counters)
    )
    return found


@lru_cache(maxsize=16)
def _patch(limit: int, quiet: frozenset[Any]) -> AbstractContextManager[Any]:
    """A patch of torch's settings, made once: each new one stays in the thread's context for ever."""
    found: AbstractContextManager[Any] = _of("torch._dynamo.config").patch(
        recompile_limit=limit,
        automatic_dynamic_shapes=False,
        specialize_float=True,
        allow_rnn=True,
        use_numpy_random_stream=True,  # else torch would draw in place of numpy, from another state
        side_effect_replay_policy="warn",
        ignore_logging_functions=set(quiet),
    )
    return found


def compiled_whole(function: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose code is captured as one graph, anew for each kind of arguments."""
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
    return compiled


def refusals() -> tuple[type[BaseException], ...]:
    """The errors that say why a function is not captured."""
    return (
        _of("torch._dynamo.exc.TorchDynamoException"),
        _of("torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode"),
        _of("torch.fx.experimental.symbolic_shapes.ConstraintViolationError"),
    )


def too_many() -> type[BaseException]:
    """The error that says that a function was captured too often."""
    found: type[BaseException] = _of("torch._dynamo.exc.FailOnRecompileLimitHit")
    return found


def writes_seen() -> Writes:
    """In a backend: what the captured code writes to objects that were there before the call."""
    translator = _of("torch._dynamo.symbolic_convert.InstructionTranslator").current_tx()
    effects, change, buffers = translator.output.side_effects, False, False
    old = tuple(
        _of(f"torch._dynamo.variables.base.{kind}MutationExisting") for kind in ("Attribute", "Value")
    )
    kept, counter = list[tuple[str, str | None]](), None
    for one in effects._get_modified_vars():
        if not isinstance(one.mutation_type, old) or one.source is None:
            continue
        if _sets_buffers(one):
            buffers = True
            continue
        owner, written = vars(one).get("value"), effects.store_attr_mutations.get(one, {})
        source, found = str(one.source.name), list[str | None]()
        own = source.startswith("L['forward']")
        sets = owner is not None and bool(written)
        for name, value in written.items() if sets else ():
            if not value.is_python_constant():
                sets = own and hasattr(owner, "__dict__") and _is_made(value)
                found.append(name)
                if sets:
                    continue
                break
            new, before = value.as_python_constant(), getattr(owner, name, _ABSENT)
            differs = type(new) is not type(before) or new != before
            counts = differs and type(new) in (int, float, complex)
            if counts and _is_read(translator, name):
                counter = (source, name) if own and type(new) is type(before) is int else None
                sets = False
            change = change or differs
        if own and not written and _fills(one):
            sets, found = True, [None]
        if not sets:
            stacks = effects.mutation_user_stacks.get(one) or [()]
            what = f"{', '.join(written) or 'items'} of a {one.python_type_name()}"
            return Writes(what, change, stack=stacks[0], counter=counter)
        kept += [(source, name) for name in found]
    return Writes("", change or bool(kept), buffers, kept=tuple(kept))


def _is_made(value: Any) -> bool:
    """Whether a value is made of tensors and constants, in tuples, lists and dicts that the call makes."""
    kind = type(value).__name__
    if kind in ("TensorVariable", "SymNodeVariable") or value.is_python_constant():
        return True
    if value.source is not None:
        return False
    if kind in ("TupleVariable", "ListVariable"):
        return all(map(_is_made, value.items))
    return kind == "ConstDictVariable" and all(map(_is_made, value.items.values()))


def _fills(one: Any) -> bool:
    """Whether what is written is a dict, that gets values made by the call."""
    own = "_buffers", "_parameters", "_modules", "_hooks"
    if type(one).__name__ != "ConstDictVariable" or str(one.source.name).rstrip("']").endswith(own):
        return False
    before = list(one.original_items.values())
    return all(any(value is each for each in before) or _is_made(value) for value in one.items.values())


def _is_read(translator: Any, name: str) -> bool:
    """Whether the code reads an attribute of a name, of an object or its class: then there is a guard."""
    ends = f".{name}", f"['{name}']", f'["{name}"]'
    return any(str(guard.name).endswith(ends) for guard in translator.output.guards)


def _sets_buffers(one: Any) -> bool:
    """Whether what is written is a module's table of buffers, where tensors that the graph makes are put."""
    source = str(one.source.name).rstrip("']")
    if source.endswith("_non_persistent_buffers_set"):  # a buffer that is assigned is taken out, and put in
        return set(one.items) == set(one.original_items)
    if type(one).__name__ != "ConstDictVariable" or not source.endswith("_buffers"):
        return False

    tables = one.original_items, one.items
    before, after = (
        {getattr(key, "vt", key).as_python_constant(): value for key, value in table.items()}
        for table in tables
    )
    if before.keys() != after.keys():
        return False
    for name, value in after.items():
        if value is not before[name] and (type(value).__name__ != "TensorVariable" or value.source):
            return False
    return True


def written_by(node: fx.Node) -> fx.Node | None:
    """What an operation of a captured graph writes, if it returns that: its first argument, or `out=`."""
    if node.op not in ("call_function", "call_method"):
        return None
    target: Any = node.target
    if "out" in node.kwargs:
        found = node.kwargs["out"]
    elif isinstance(target, str) and target.endswith("_") and not target.endswith("__"):
        found = node.args[0]
    elif getattr(target, "__module__", "") == "_operator" and target.__name__ in _IN_PLACE:
        found = node.args[0]
    else:
        return None
    return found if isinstance(found, fx.Node) else None


def source_of(place: fx.Node) -> str:
    """Where the value of a captured graph's input comes from, as an expression of Python."""
    given = place.meta.get("grapharg")
    source = getattr(given, "source", None)
    return "" if source is None else str(source.name)


def tensor_of(place: fx.Node) -> torch.Tensor | None:
    """The tensor that a captured graph's input was as it was captured; None if it is none."""
    given = getattr(place.meta.get("grapharg"), "example", None)
    return given if isinstance(given, torch.Tensor) else None


@contextmanager
def devices_ignored() -> Iterator[None]:
    """While this is open, shapes are found as if all tensors lay on one device."""

    def common(function: Any, args: Sequence[Any]) -> tuple[torch.device, bool]:
        fakes = [one for one in torch.utils._pytree.tree_leaves(args) if isinstance(one, torch.Tensor)]
        known = [one.device for one in fakes if one.dim()] or [one.device for one in fakes]
        away = [device for device in known if device.type != "cpu"]
        return (away or known)[0], False

    with COMMON_DEVICE.replaced(staticmethod(common)):
        yield


@contextmanager
def _resizing_by_kernels() -> Iterator[None]:
    """While this is open, resizing is traced as torch's kernels of it.

    Torch traces it as formulas that end with a copy to a layout. Which one it is follows from the strides of
    fakes, which differ from real ones where there is one row, and a dropout draws in the order of the layout.
    """
    key = _of("torch._C.DispatchKey")
    aside = key.Autograd, key.CompositeImplicitAutograd
    before = [(one, dict(one.py_kernels)) for one in _resizing() if any(map(one.py_kernels.get, aside))]
    try:
        for one, _ in before:
            for each in aside:
                one.py_kernels.pop(each, None)
            one._dispatch_cache.clear()
        yield
    finally:
        for one, kernels in before:
            one.py_kernels.update(kernels)
            one._dispatch_cache.clear()


@cache
def _resizing() -> Sequence[Any]:
    """Torch's operators that resize images."""
    packets = [getattr(torch.ops.aten, name) for name in _RESIZING if hasattr(torch.ops.aten, name)]
    return [getattr(packet, name) for packet in packets for name in packet.overloads()]


@contextmanager
def joint_graph(
    module: fx.GraphModule, args: Sequence[Any], decompositions: dict[Any, Any]
) -> Iterator[tuple[fx.GraphModule, Any]]:
    """The graph of a module with its backward, without writes: what is written is one more output."""
    export = _of("torch._functorch.aot_autograd.aot_export_joint_with_descriptors")
    settings = _of("torch._functorch.config")
    with ExitStack() as stack:  # `backward()` is called outside of an autocast
        stack.enter_context(settings.patch(backward_pass_autocast="off"))
        if not decompositions:
            stack.enter_context(_resizing_by_kernels())
        made = export(stack, module, tuple(args), decompositions=decompositions)
        _leave_out_tokens(made.graph_module.graph)
        yield made.graph_module, made._aot_state.fw_metadata


def _leave_out_tokens(graph: fx.Graph) -> None:
    """Let operators that return nothing, such as checks, stand by themselves: torch chains them by tokens."""
    (end,) = graph.find_nodes(op="output")
    for node in graph.find_nodes(
        op="call_function", target=_of("torch._higher_order_ops.effects.with_effects")
    ):
        token, operator, *args = node.args
        if not isinstance(operator, torch._ops.OpOverload) or operator._schema.returns:
            return
        with graph.inserting_before(node):
            alone = graph.call_function(operator, tuple(args), node.kwargs)
            alone.meta = dict(node.meta, val=None)
        for part in list(node.users):
            part.replace_all_uses_with(token)
            graph.erase_node(part)
        graph.erase_node(node)
    outputs = list(zip(end.args[0], end.meta["desc"], strict=True))
    kept = [(one, role) for one, role in outputs if not _is_token(role)]
    end.args = (tuple([one for one, _ in kept]),)
    end.meta["desc"] = [role for _, role in kept]
    for place in graph.find_nodes(op="placeholder"):
        if _is_token(place.meta["desc"]):
            graph.erase_node(place)


def _is_token(descriptor: Any) -> bool:
    return "Token" in type(descriptor).__name__


@dataclass(frozen=True)
class Role:
    """What an input or output of a joint graph is.

    Args:
        kind: `"input"`, `"tangent"`, `"output"`, `"written"`, `"gradient"`, or `"after"`: the gradient of
            what was written to an input, as later code sees it; a class of torch's for others.
        index: of which input or output of the captured graph.
    """

    kind: str
    index: int


_KINDS = {
    "PlainAOTInput": ("input", ()),
    "PlainAOTOutput": ("output", ()),
    "TangentAOTInput": ("tangent", ("output",)),
    "InputMutationAOTOutput": ("written", ("mutated_input",)),
    "GradAOTOutput": ("gradient", ("grad_of",)),
}


def role_of(descriptor: Any) -> Role | None:
    """What an input or output of a joint graph is; None if it stands for nothing."""
    if descriptor is None:
        return None
    kind, way = _KINDS.get(type(descriptor).__name__, (type(descriptor).__name__, ()))
    for name in way:
        descriptor = getattr(descriptor, name)
    if kind == "tangent" and type(descriptor).__name__ == "InputMutationAOTOutput":
        kind, descriptor = "after", descriptor.mutated_input
    plain = type(descriptor).__name__ in ("PlainAOTInput", "PlainAOTOutput")
    return Role(kind, descriptor.idx) if plain else Role(type(descriptor).__name__, -1)


def is_written_without_gradient(info: Any) -> bool:
    """Whether no gradient follows from what code writes to an input: leaves are written in no other way."""
    return bool(info.is_leaf or info.mutations_under_no_grad_or_inference_mode)


def is_own_output(info: Any) -> bool:
    """Whether an output of a graph is neither an input nor a view of an input or of another output."""
    return info.output_type.name in ("non_alias", "unsafe_view_alias", "custom_function_view")


def inductor_decompositions() -> dict[Any, Any]:
    """By operator, what inductor wants it to be made of."""
    _of("torch._inductor.compile_fx.compile_fx_inner")  # some ask modules that only this imports
    with _as_the_code_draws():
        found: dict[Any, Any] = _of("torch._inductor.decomposition.select_decomp_table")()
    return found


def _as_the_code_draws() -> AbstractContextManager[Any]:
    """While this is open, inductor leaves random numbers to torch's own kernels."""
    found: AbstractContextManager[Any] = _of("torch._inductor.config").patch(fallback_random=True)
    return found


def inductor(module: fx.GraphModule, *, device: torch.device, backward: bool) -> Callable[[list[Any]], Any]:
    """A graph of operators compiled by inductor for a device; it takes a list of inputs, which it empties.

    Args:
        module: the graph; its inputs say what their values look like. Others are refused when it is called.
        device: where it runs.
        backward: whether it is one of backward.
    """
    compile_inner, mode = _of("torch._inductor.compile_fx.compile_fx_inner"), FakeTensorMode()
    propagate = _of("torch.fx.passes.fake_tensor_prop.FakeTensorProp")
    examples = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    looks = [(one.shape, one.stride(), one.dtype) for one in examples]
    with mode:
        fakes = [torch.empty_strided(*look[:2], dtype=look[2], device=device) for look in looks]
    propagate(module, mode).propagate_dont_convert_inputs(*fakes)
    (end,) = module.graph.find_nodes(op="output")
    # the programs that read an output were told its strides, so it has to keep them
    end.meta["user_visible_output_idxs"] = list(range(len(end.args[0])))
    with _as_the_code_draws():
        made: Callable[[list[Any]], Any] = compile_inner(module, fakes, is_backward=backward)

    called = made

    def run(values: list[Any]) -> Any:
        nonlocal called
        found = called(values)
        called = getattr(made, "current_callable", made)  # the first call ends what tuning had open
        return found

    return run
