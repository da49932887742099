"""Who read and who wrote what while a model really ran: a record to hold layer graphs against.

It shares no code with the package: the model runs on real tensors, storages are kept alive and known
by address, and each read and each write is noted with the node that did it, in the order of time.

A node is a call of a module that the graph has as a layer, or a function called between layers, under
the name that the graph would give it. Two things have no node, and so neither read nor write for
anybody: operations on views alone (which compute nothing), and functions that are given nothing but
constants made of nothing (`torch.arange(4) * 2`): these are their first user's, on its device. What is
made on the device of a tensor that lies somewhere (`device=x.device`) has a node.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.records import Inputs, LayerGraph

UNSAID = {"native_batch_norm": (3, 4), "_native_batch_norm_legit": (3, 4)}
"""Operators that write arguments without saying so: which ones."""


@dataclasses.dataclass(frozen=True)
class Event:
    """A node read, wrote or handed on a storage.

    Args:
        kind: `"read"`, `"write"` or `"hand on"`.
        node: its name.
        storage: the number of the storage.
    """

    kind: str
    node: str
    storage: int


@dataclasses.dataclass(eq=False)
class Called:
    """A torch function that the code between layers called; its node once it computes something."""

    name: str
    given: list[Tensor]
    beside: Tensor | None = None
    node: str | None = None
    known: bool = False


class Record:
    """What happened, and where in the model's code we are.

    Args:
        model: the model.
        graph: its graph, which says which modules are layers, and which glue runs on the host.
    """

    def __init__(self, model: nn.Module, graph: LayerGraph) -> None:
        rows = [data for _, data in graph.nodes(data=True) if data["kind"] == "layer"]
        self.layers = {row["module"] for row in rows if not row.get("unread")}
        self.on_host = {name for name, row in graph.nodes(data=True) if row.get("on_host")}
        self.asked: dict[int, tuple[torch.device, Tensor]] = {}
        self.events: list[Event] = []
        self.names = {id(module): name for name, module in model.named_modules()}
        self.kept: dict[int, Any] = {}
        self.weights: dict[int, set[str]] = {}
        self.writer: dict[int, str] = {}
        self.stack: list[str] = []
        self.layer: str | None = None
        self.function: Called | None = None
        self.turns: dict[str, int] = {}
        for name, weight in [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]:
            self.weights.setdefault(self.number(weight), set()).add(name)

    @property
    def nodes(self) -> set[str]:
        """All that read or wrote."""
        return {event.node for event in self.events}

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, which is kept, so that no other gets its address."""
        storage = tensor.untyped_storage()
        self.kept.setdefault(storage._cdata, storage)
        return storage._cdata

    def note(self, kind: str, node: str | None, tensors: list[Tensor]) -> None:
        """Note what a node does, if it is one."""
        for tensor in tensors if node is not None else ():
            assert node is not None
            number = self.number(tensor)
            known = number in self.writer or number in self.weights or node in self.on_host
            kinds = ("write", "read") if kind == "read" and not known else (kind,)
            self.events += [Event(one, node, number) for one in kinds]
            if "write" in kinds:
                self.writer[number] = node

    def turn(self, path: str) -> int:
        """How often something of this name came before."""
        self.turns[path] = self.turns.get(path, -1) + 1
        return self.turns[path]

    def node(self, operator: str, given: list[Tensor]) -> str | None:
        """The node of an operation that is running."""
        if self.layer is not None:
            return self.layer
        called = self.function or Called(operator, given)
        made = not called.given or called.name != "to"
        beside = made and called.beside is not None and self._lies_somewhere(called.beside)
        if not called.known and (beside or any(self._comes_from_somewhere(t) for t in called.given)):
            called.known = True
            path = f"glue:{self.stack[-1]}/{called.name}"
            called.node = f"{path}#{self.turn(path)}"
            self.note("read", called.node, called.given)
        return called.node

    def _lies_somewhere(self, tensor: Tensor) -> bool:
        number = self.number(tensor)
        if number in self.weights:
            return any(event.storage == number for event in self.events)
        maker = self.writer.get(number, "input:")
        return not maker.startswith("input:") and maker not in self.on_host

    def _comes_from_somewhere(self, tensor: Tensor) -> bool:
        return self.number(tensor) in self.writer or self.number(tensor) in self.weights


class Functions(TorchFunctionMode):
    """Tells the record which function the code calls."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", type(func).__name__)
        if self.record.function is not None or name == "__get__":
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.device):  # an object of its own for each question
                self.record.asked[id(result)] = result, args[0]
            return result
        _, beside = self.record.asked.get(id((kwargs or {}).get("device")), (None, None))
        self.record.function = Called(name, tensors_of((args, kwargs)), beside)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.record.function = None


class Operations(TorchDispatchMode):
    """Tells the record what is read and written."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        record, kwargs = self.record, kwargs or {}
        result = func(*args, **kwargs)
        if not record.stack:
            return result
        given = tensors_of((args, kwargs))
        numbers = {record.number(tensor) for tensor in given}
        made = [tensor for tensor in tensors_of(result) if record.number(tensor) not in numbers]
        written: list[Tensor] = []
        for index, argument in enumerate(func._schema.arguments):
            said = argument.alias_info is not None and argument.alias_info.is_write
            if said or index in UNSAID.get(func._schema.name.rpartition("::")[2], ()):
                written += tensors_of(args[index] if index < len(args) else kwargs.get(argument.name))
        if made or written:
            node = record.node(func.overloadpacket.__name__, given)
            record.note("read", node, given)
            record.note("write", node, [*written, *made])
        return result


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in nested arguments or results."""
    return [tensor for _, tensor in named(value, "")]


def named(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors, each with the path that leads to it."""
    items: Any = ()
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    for key, item in items:
        yield from named(item, f"{path}.{key}")


@contextmanager
def watched(model: nn.Module, record: Record) -> Iterator[None]:
    """Every call of a module tells the record; afterwards the modules are as before."""
    with ExitStack() as stack:
        for module in model.modules():
            name, forward = record.names[id(module)], module.forward
            module.forward = calling(record, name, forward)
            stack.callback(vars(module).pop, "forward")
        stack.enter_context(Operations(record))
        stack.enter_context(Functions(record))
        apply = torch.autograd.Function.__dict__["apply"]
        stack.callback(setattr, torch.autograd.Function, "apply", apply)
        setattr(torch.autograd.Function, "apply", classmethod(applying(record, apply)))  # noqa: B010
        yield


def applying(record: Record, apply: Any) -> Callable[..., Any]:
    """An `autograd.Function.apply`, which no mode sees, that tells the record of its call."""

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        function = record.function
        record.function = function or Called(cls.__name__, tensors_of((args, kwargs)))
        try:
            return apply.__get__(None, cls)(*args, **kwargs)
        finally:
            record.function = function

    return applied


def calling(record: Record, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A `forward` that tells the record of its call."""

    def called(*args: Any, **kwargs: Any) -> Any:
        turn = record.turn(name or "(root)")
        outer, function = record.layer, record.function
        is_layer = outer is None and (name or "(root)") in record.layers
        record.stack.append(name)
        record.function = None
        if is_layer:
            record.layer = f"{name or '(root)'}#{turn}" if turn else name or "(root)"
            record.note("read", record.layer, tensors_of((args, kwargs)))
        try:
            result = forward(*args, **kwargs)
            if is_layer:
                given_on = tensors_of(result)
                record.note("hand on", record.layer, given_on)
                for tensor in given_on:  # a constant that a layer hands on comes from there
                    record.writer.setdefault(record.number(tensor), str(record.layer))
        finally:
            record.stack.pop()
            record.layer, record.function = outer, function
        return result

    return called


def really_run(model: nn.Module, inputs: Inputs, graph: LayerGraph, *, training: bool) -> Record:
    """Run a model on real tensors and note who reads and writes what.

    Args:
        model: the model.
        inputs: arguments of the call.
        graph: its captured graph, which says what is a layer, and what runs on the host.
        training: whether it runs in training mode, with gradients.
    """
    record = Record(model, graph)
    parameters = inspect.signature(model.forward).parameters.values()
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    places += [str(index) for index in range(len(places), len(inputs.args))]
    given = {**dict(zip(places, inputs.args, strict=False)), **inputs.kwargs}
    for path, tensor in [pair for name, value in given.items() for pair in named(value, name)]:
        if record.number(tensor) not in record.writer:
            record.note("write", f"input:{path}", [tensor])
    model.train(training)
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(training), watched(model, record):
        model(*inputs.args, **inputs.kwargs)
    return record
