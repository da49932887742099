"""A model's code as graphs: one for each kind of call, checked by torch's guards at each step.

call ─▶ guards ─▶ known: the graph's inputs, and the result with tokens where its outputs belong
             └─▶ new: torch's compiler follows the code, and hands over its graph
"""

import copy
import logging
import os
import re
import threading
import time
import types
import warnings
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from baechi.backend import unwatched
from baechi.errors import CompileError
from baechi.progress import say
from baechi.records.inputs import Inputs
from baechi.records.pipeline import units_of
from baechi.records.stages import Stages
from baechi.run.pipeline.batch.look import capture_installed, is_from_capture
from baechi.run.programs.counted import counted
from baechi.run.programs.kept import Kept, counter_at, kept_at
from baechi.run.programs.kinds import Kind, kind_of_call, who_sees
from baechi.run.programs.names import note_runs
from baechi.run.programs.program import Compiled
from baechi.run.runtime import Runtime
from baechi.run.user_line import line_in, line_told, line_where_made
from baechi.torchlib.dynamo import compiler_back
from baechi.torchlib.modules.inside import modules_in
from baechi.torchlib.modules.intercept import forwards_set_aside, original_forward
from baechi.torchlib.private.graphs import (
    capturing,
    compiled_whole,
    devices_ignored,
    refusals,
    source_of,
    too_many,
    writes_seen,
    written_by,
)
from baechi.torchlib.private.modules import buffer_table
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.units import format_seconds

logger = logging.getLogger(__name__)

Loss = Callable[[Any, Any], torch.Tensor]
Tables = Sequence[tuple[MutableMapping[str, torch.Tensor | None], Mapping[str, torch.Tensor | None]]]
"""Tables of buffers, and what was in them."""

TARGET = "target"

VARIABLE = "BAECHI_COMPILE"
"""The environment's switch: `BAECHI_COMPILE=0` runs all models as their code is written."""

CURE = "Or give distribute compile='auto', which runs such a model as its code is written"
"""What else to do where a model cannot be captured."""

_NAME = re.compile(r"\w+")

_PLAIN = {
    ("Dynamic shape operator",): "the size of a result depends on the values of a tensor",
    ("DynamicOutputShape",): "the size of a result depends on the values of a tensor",
    ("DataDependentOutput",): "a number is taken out of a tensor, or a decision follows from its values",
    ("data-dependent", "multi_head_attention_forward"): "torch finds out by its values whether a mask is "
    "causal, so say it (is_causal=, mask_is_causal= or tgt_is_causal=)",
    ("data-dependent", "batch_norm"): "a batch norm without a momentum counts its batches, so give it one",
    ("share storage",): "what the code writes shares memory with other buffers or inputs, so clone() it",
    ("use_numpy_random_stream",): "numpy draws random numbers, so draw them with torch",
    ("autograd.grad",): "the code takes gradients inside of its forward, which programs cannot",
    ("setattr() on Tensor.requires_grad",): "the code lets a tensor require a gradient",
    ("failed to run FX node",): "torch cannot run an operator on what this call gives",
    ("assertion failed", "(bool: False)"): "an assertion of the code does not hold",
    ("data-dependent",): "the code decides by the values of a tensor",
    ("marked as skipped",): "the code calls what torch's compiler does not follow",
}
"""What torch's messages say, in plain words."""

_RAISED = "Developer debug context: raised exception "
"""What torch's compiler says before an exception that the code raises."""

_LOGS = "debug", "info", "warn", "error", "critical", "exception", "log"


def _entry(forward: Callable[..., Any], loss: Loss | None, args: Any, kwargs: Any) -> Any:
    """What is captured: the model's code, and the loss of what it returns, if that is asked for."""
    if loss is None or TARGET not in kwargs:
        return forward(*args, **kwargs)
    own = {name: value for name, value in kwargs.items() if name != TARGET}
    target = kwargs[TARGET]
    result = forward(*args, **own)
    return result if target is None else loss(result, target)


@dataclass(eq=False)
class Captured:
    """A graph of the model's code.

    Args:
        module: the graph; its operations have notes of their runs.
        sources: where each of its inputs comes from, as an expression of Python.
        changes: whether a call changes constants that later calls may read: then each asks the guards.
        tokens: for each of its outputs, what stands for it in the result.
        spent_s: how long it took to make it.
        keeps: of outputs, those that are an input which was written in place: the input's number.
        sets_buffers: whether the code assigns buffers.
        kept: what it keeps in attributes and dicts.
        assigned: by input, the output that is assigned to the buffer that it is.
    """

    module: fx.GraphModule
    sources: Sequence[str]
    changes: bool
    tokens: list[torch.Tensor]
    spent_s: float = 0.0
    keeps: Mapping[int, int] = field(default_factory=dict)
    sets_buffers: bool = False
    kept: Sequence[tuple[str, str | None]] = ()
    assigned: dict[int, int] = field(default_factory=dict)
    _told: int = 0
    _stages: dict[str, Compiled] = field(default_factory=dict)

    @cached_property
    def given(self) -> Sequence[int]:
        """The numbers of its inputs that come from what the call was given."""
        own = "L['forward']", "L['loss']", "G["
        return [number for number, source in enumerate(self.sources) if not source.startswith(own)]

    def compiled(self, runtime: Runtime, flat: Sequence[Any], compiler: str) -> Compiled:
        """The graph, ready to be made programs of."""
        if compiler not in self._stages:
            units, begun_s = units_of(runtime.plan), time.perf_counter()
            try:
                with unwatched(), devices_ignored():
                    made = Compiled(
                        self.module, flat, units, runtime.backend, compiler, assigned=self.assigned
                    )
            except CompileError:
                raise
            except Exception as error:  # whatever torch says of its graph
                raise CompileError(_untraced(error)) from error
            self._stages[compiler] = made
            self.spent_s += time.perf_counter() - begun_s
        return self._stages[compiler]

    def tell(self, compiler: str) -> None:
        """Say how long it took to compile programs, if more are compiled than was said."""
        stages = self._stages[compiler]
        if stages.made > self._told:
            self._told, seconds = stages.made, self.spent_s + stages.spent_s
            line = f"compiled {stages.made} programs in {format_seconds(seconds)} ({compiler})"
            logger.info(line)
            say(lambda: line)


@dataclass(frozen=True, eq=False)
class Assigned:
    """A buffer that the code assigns anew.

    Args:
        table: the buffers of its module.
        name: its name there.
        before: the tensor that it was.
        output: the number of the output that it becomes.
    """

    table: MutableMapping[str, torch.Tensor | None]
    name: str
    before: torch.Tensor
    output: int


@dataclass(frozen=True, eq=False)
class Bound:
    """A call that a graph stands for.

    Args:
        captured: the graph.
        flat: its inputs.
        template: what the call returns, with tokens in place of outputs.
        assigned: the buffers that it assigns.
        like: a call of another part, which has all inputs in common but some.
        own: the numbers of those.
        kept: where it keeps tensors that it makes.
    """

    captured: Captured
    flat: Sequence[Any]
    template: Any
    assigned: Sequence[Assigned] = ()
    like: "Bound | None" = None
    own: Sequence[int] = ()
    kept: Sequence[Kept] = ()

    def keep(self, values: Sequence[torch.Tensor]) -> None:
        """The call is over: what it keeps is there from now on."""
        made = self._by_token(values)
        for one in self.kept:
            one.fill(lambda token: made.get(id(token), token))

    def _by_token(self, values: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        return {id(token): value for token, value in zip(self.captured.tokens, values, strict=True)}

    def result(self, values: Sequence[torch.Tensor], *, deep: bool) -> Any:
        """What the call returns."""
        made = self._by_token(values)
        others: list[Any] = []
        found = map_tensors(lambda one: made.get(id(one), one), self.template, other=others.append)
        if not deep or not others:
            return found
        memo: dict[int, Any] = dict(made)
        for one in self.flat:
            memo.setdefault(id(one), one)
        return copy.deepcopy(self.template, memo)

    def of_part(self, mine: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> "Bound | None":
        """The same of another part of the batch that looks alike; None where the code has to be asked."""
        if self.captured.changes:
            return None
        stands = {id(one): there for one, there in zip(mine, other, strict=True)}
        flat, own = list(self.flat), self.captured.given
        for number in own:
            there = stands.get(id(flat[number]))
            if there is None:
                return None
            flat[number] = there
        template = map_tensors(lambda one: stands.get(id(one), one), self.template)
        return Bound(self.captured, flat, template, self.assigned, self, own)

    def with_flat(self, weight: Callable[[Any], Any], known: "Bound | None") -> "Bound":
        """The same with other weights; `known` is what became of the call that it is like."""
        if known is None:
            flat = list(map(weight, self.flat))
        else:
            flat = list(known.flat)
            for number in self.own:
                flat[number] = self.flat[number]
        template = map_tensors(weight, self.template)
        return Bound(self.captured, flat, template, like=known, own=self.own)


class Captures:
    """The graphs of a model's calls.

    Args:
        options: how they are made.

    Attributes:
        why: why some kinds of calls run as the code is written, by kind.
        orders: the order of a step's programs, by what it depends on.
        last_told: why the last one does.
    """

    def __init__(self, options: Stages) -> None:
        self.options = options
        self.why: dict[Kind, str] = {}
        self.orders: dict[Hashable, list[tuple[bool, int, int]]] = {}
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._hooks: tuple[Any, ...] = ()
        self._bound: list[tuple[Captured, Sequence[Any], Tables, Sequence[Kept]]] = []
        self._local: dict[str, Any] = {}
        self._modules: Sequence[nn.Module] = ()
        self._uncounted: list[tuple[str, str]] = []
        self._counters: list[str] = []
        self._alone = threading.RLock()
        self._told: set[str] = set()
        self._read: set[Kind] = set()
        self.last_told = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Captures, (self.options,)

    def anew(self) -> "Captures":
        """The same for a copy of the model."""
        return Captures(self.options)

    def compiler(self, runtime: Runtime) -> str:
        """What makes programs now: an emulated cluster sees no kernels of inductor."""
        return "aot_eager" if runtime.backend.session is not None else self.options.backend

    def bind(
        self, model: nn.Module, runtime: Runtime, loss: Loss | None, parts: Sequence[Inputs], *, alike: bool
    ) -> list[Bound] | None:
        """Find the graphs of calls."""
        modules = modules_in(model)
        kind = kind_of_call(model, parts[0], modules)
        if kind in self.why:
            return None
        if os.environ.get(VARIABLE, "1").strip().lower() in ("0", "false", "off", "no"):
            self.tell(f"{VARIABLE}={os.environ[VARIABLE]}")
            return None
        seen = who_sees(modules)
        if seen:
            self.tell(f"it is called {seen}")
            return None
        with self._alone:
            self._modules = modules
            try:
                _refuse_plan(runtime)
                _refuse_draws(model, modules)
                if not self.options.required and (why := _taken_apart(model, modules)):
                    raise CompileError(why)
                self._hooks = kind.hooks
                return self._all_bound(model, runtime, loss, parts, alike=alike)
            except _Reads as error:
                if kind in self._read:
                    self.refuse(kind, CompileError(str(error)))
                else:  # the table is there after it
                    self._read.add(kind)
                    self.tell(f"once, since {error}")
            except CompileError as error:
                if is_from_capture(str(error)) and capture_installed(model):
                    return self.bind(model, runtime, loss, parts, alike=alike)
                self.refuse(kind, error)
            except _TooMany as error:
                self.tell(str(error))
        return None

    def refuse(self, kind: Kind, error: CompileError) -> None:
        """From now on calls of a kind run as the code is written, if they may: steps of training may not,
        but for hooks that cannot be followed."""
        if self.options.required and torch.is_grad_enabled() and not kind.hooks:
            raise CompileError(f"{error}. {CURE}") from error
        hooks = "it is called with hooks on modules inside of it; " if kind.hooks else ""
        self.why[kind] = f"{hooks}{error}"
        self.tell(self.why[kind])

    def tell(self, why: str) -> None:
        """Say once that calls run as the code is written."""
        self.last_told = why
        if why not in self._told:
            self._told.add(why)
            logger.warning("not compiled, so it runs as its code is written: %s", why)

    def _all_bound(
        self, model: nn.Module, runtime: Runtime, loss: Loss | None, parts: Sequence[Inputs], *, alike: bool
    ) -> list[Bound] | None:
        known: dict[Hashable, tuple[Sequence[torch.Tensor], Bound]] = {}
        found = list[Bound]()
        try:
            for part in parts:
                tensors = list(tensors_in(part.args, part.kwargs))
                looks = tuple(map(_looks, tensors))
                bound = None
                if alike and looks in known:
                    mine, first = known[looks]
                    bound = first.of_part(mine, tensors)
                if bound is None:
                    bound = self._call(model, runtime, loss, part)
                if bound is None:
                    return None
                known.setdefault(looks, (tensors, bound))
                found.append(bound)
                _refuse_tokens(found)
        finally:  # values come when the step is over
            for bound in reversed(found):
                for one in reversed(bound.kept):
                    one.put_back()
        return found

    def _call(self, model: nn.Module, runtime: Runtime, loss: Loss | None, part: Inputs) -> Bound | None:
        if self._hooks not in self._compiled:  # torch's guards do not look at hooks
            self._compiled[self._hooks] = compiled_whole(
                _fresh(_entry), lambda module, _: self._capture(model, runtime, module)
            )
        compiled, self._bound, begun_s = self._compiled[self._hooks], [], time.perf_counter()
        self._uncounted.clear()
        with (
            unwatched(),
            compiler_back(),
            forwards_set_aside(self._modules),
            runtime.stand_ins.standing(self._modules) if runtime.over_ranks else nullcontext(),
            capturing(self.options.limit, frozenset() if self._hooks else _loggers(), tuple(self._counters)),
        ):
            self._local = {"forward": original_forward(model), "args": part.args, "kwargs": part.kwargs}
            template = None
            try:
                with devices_ignored(), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "While compiling, we found certain side effects")
                    template = compiled(original_forward(model), loss, part.args, part.kwargs)
            except too_many():
                raise _TooMany(
                    f"{self.options.limit} kinds of calls (shapes, modes) are compiled, and here is another: "
                    "pad inputs to fewer shapes, or give compile=baechi.Stages(limit=...)"
                ) from None
            except refusals() as error:
                counters = [counter_at(*one, self._local) for one in self._uncounted]
                if not counters or set(counters) & set(self._counters):
                    raise CompileError(_reason(model, error)) from error
                self._counters += counters
                self._compiled.clear()
            finally:
                self._local = {}
            ran, self._bound = self._bound, []  # else the batch would live until the next call
            found = _bound_of(*ran[0], template) if len(ran) == 1 else None  # while stand-ins stand
        if not self._compiled:  # again, with that number as a variable
            return self._call(model, runtime, loss, part)
        if found is not None:  # else it computes nothing
            captured = found.captured
            captured.spent_s = captured.spent_s or time.perf_counter() - begun_s
        return found

    def _capture(self, model: nn.Module, runtime: Runtime, module: fx.GraphModule) -> Callable[..., Any]:
        slow = _taken_apart(model, self._modules)
        if slow and slow not in self._told:
            self._told.add(slow)
            cure = "" if runtime.over_ranks else ": compile='auto' runs such a model as its code is written"
            logger.warning("%s%s", slow, cure)
        writes = writes_seen()
        self._uncounted = [] if writes.counter is None else [writes.counter]
        if writes.refused:
            where = line_in(writes.stack)
            raise CompileError(
                f"its code writes {writes.refused}, which was there before the call{where and f' ({where})'}"
            )
        module, numbers = counted(module)
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        sources = list(map(source_of, places))
        note_runs(module, model, runtime.plan, units_of(runtime.plan))
        (end,) = [node for node in module.graph.nodes if node.op == "output"]
        captured = Captured(
            module,
            sources,
            writes.change,
            [_token(node.meta["example_value"]) for node in end.args[0]],
            keeps=_kept(places, end.args[0]),
            sets_buffers=writes.buffers,
            kept=writes.kept,
        )

        def run(*given: Any) -> Sequence[Any]:
            flat, made = numbers.apart(given)
            tables = list(map(buffer_table, self._modules)) if captured.sets_buffers else ()
            before = [(table, dict(table)) for table in tables if table]
            self._bound.append((captured, flat, before, kept_at(captured.kept, self._local)))
            return numbers.together(captured.tokens, made)

        return run


def _refuse_plan(runtime: Runtime) -> None:
    """Raise if a plan asks for what programs do not do."""
    if runtime.cuts or runtime.plan.graph.says("shard"):
        raise CompileError("its plan splits layers over devices (split=), which programs do not")


def _refuse_draws(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Raise if programs would draw other numbers than the code."""
    for module in modules:
        if isinstance(module, nn.RNNBase) and module.training and module.dropout and module.num_layers > 1:
            name = next(name for name, one in model.named_modules() if one is module)
            raise CompileError(
                f"its {type(module).__name__} {name} has dropout between its layers, whose draws torch's "
                "compiler makes in another order: use one for each layer, and nn.Dropout between"
            )


def _taken_apart(model: nn.Module, modules: Sequence[nn.Module]) -> str:
    """Why programs of a model take far longer than its code; empty if nothing says so."""
    found = next((one for one in modules if isinstance(one, nn.RNNBase)), None)
    if found is None:
        return ""
    name = next(name for name, one in model.named_modules() if one is found)
    what = f"its {type(found).__name__} {name}".rstrip()
    return (
        f"torch's compiler takes {what} apart into operators for each word, so a step takes about ten times "
        "as long"
    )


def _kept(places: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> dict[int, int]:
    """By output that is an input which was written in place, the input's number."""
    found = {}
    for number, node in enumerate(outputs):
        while (written := written_by(node)) is not None:
            node = written
        if node in places:
            found[number] = places.index(node)
    return found


def _bound_of(
    captured: Captured, flat: Sequence[Any], tables: Tables, kept: Sequence[Kept], template: Any
) -> Bound:
    """A call that ran: attributes and tables of buffers are as they were before it."""
    for one in kept:
        one.note()
    try:
        assigned = _put_back(captured, flat, tables)
    except CompileError:
        for one in reversed(kept):
            one.put_back()
        raise
    return Bound(captured, flat, template, assigned, kept=kept)


def _put_back(captured: Captured, flat: Sequence[Any], tables: Tables) -> list[Assigned]:
    """Take tokens out of tables of buffers again; what the call is to put there instead."""
    number_of, found = {id(token): number for number, token in enumerate(captured.tokens)}, []
    outputs = captured.module.graph.find_nodes(op="output")[0].args[0] if tables else ()
    why = ""
    for table, before in tables:
        for name, token in table.items():
            number, tensor = number_of.get(id(token)), before[name]
            if number is None or tensor is None:
                continue
            if outputs[number].meta["example_value"].requires_grad:
                where = line_where_made(outputs[number])
                why = (
                    f"its code assigns the buffer {name} a tensor with a gradient{where and f' ({where})'}: "
                    "detach that"
                )
            kept = captured.keeps.get(number)
            if kept is None or flat[kept] is not tensor:
                found.append(Assigned(table, name, tensor, number))
                for place, one in enumerate(flat):
                    if one is tensor:
                        captured.assigned[place] = number
        table.clear()
        table.update(before)
    if why:
        raise CompileError(why)
    return found


def _refuse_tokens(bounds: Sequence[Bound]) -> None:
    """Raise if the last of some calls reads what another one of them is to make."""
    tokens = {id(token) for bound in bounds[:-1] if bound.kept for token in bound.captured.tokens}
    captured = bounds[-1].captured
    places = captured.module.graph.find_nodes(op="placeholder") if tokens else ()
    for place, source, value in zip(places, captured.sources, bounds[-1].flat, strict=False):
        if id(value) in tokens:
            name = next(one for one in reversed(_NAME.findall(source)) if not one.isdigit())
            where = line_where_made(next(iter(place.users)))
            again = name in [one or _NAME.findall(owner)[-1] for owner, one in captured.kept]
            raise (CompileError if again else _Reads)(
                f"its code keeps a tensor in {name}, which the next microbatch reads"
                f"{where and f' (at {where})'}: make it in __init__, or make it a buffer (register_buffer), "
                "which microbatches read in their order"
            )


class _Reads(Exception):
    """A microbatch reads what the one before it kept, and keeps nothing there: a table, say."""


class _TooMany(Exception):
    """More kinds of calls than are kept."""


def _loggers() -> frozenset[Any]:
    """What logs or warns in a model's code: it is left out of its graph. Some libraries add such methods."""
    table = vars(logging.Logger)
    logs = [table[name] for name in table if name.startswith(_LOGS) and callable(table[name])]
    return frozenset([*logs, warnings.warn])


def _token(value: torch.Tensor) -> torch.Tensor:
    """What stands for an output: it has its shape and dtype, and no memory."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _looks(tensor: torch.Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _fresh(function: Any) -> Callable[..., Any]:
    """A function with code of its own: captures are kept by code, and so many of each."""
    made: Callable[..., Any] = types.FunctionType(function.__code__.replace(), function.__globals__)
    return made


def _reason(model: nn.Module, error: BaseException) -> str:
    """Why a model was not captured, in torch's words, and at which line."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, CompileError):
        return f"this {type(model).__name__} does not run as programs: {inner}"
    text = str(getattr(error, "msg", None) or error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    explained = next((line for line in lines if line.startswith(("Explanation:", "Caused by:"))), "")
    where = line_in(getattr(error, "real_stack", None) or ())
    raised = next((line.removeprefix(_RAISED) for line in lines if line.startswith(_RAISED)), "")
    if raised:
        return f"the code of this {type(model).__name__} raises {raised}{where and f', at {where}'}"
    return (
        f"this {type(model).__name__} does not run as programs: {_plain(text)}{said}"
        f"{explained and f' ({explained})'}"
        f"{where and f', at {where}'}. Change that line"
    )


def _untraced(error: BaseException) -> str:
    """Why a captured graph has no backward, in torch's words, and the line of the operation."""
    text = str(error).strip()
    said, kind = next(iter(text.splitlines()), "").rstrip("."), type(error).__name__
    where = line_told(text)
    return (
        f"its code is captured, and not traced with its backward: {_plain(f'{kind} {text}')}{kind}: {said}"
        f"{where and f', at {where}'}"
    )


def _plain(text: str) -> str:
    return next((f"{words}: " for parts, words in _PLAIN.items() if all(one in text for one in parts)), "")
