"""Reordering changes nothing that a model's code can see: hard little models, in any order of launches."""

import copy
import threading
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networkx as nx
import pytest
import torch
from architectures.base import noise, seeded
from run.protections.models import Shift, linear
from same import Result, assert_same, step
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.run.runtime import Runtime, binding_of
from baechi.run.step.step import Step

Placer = str | Callable[[baechi.LayerGraph, baechi.Cluster], baechi.Plan]

ROUNDING = 2e-5
"""What single precision loses where three or more gradients are summed in another order."""


# --- plans in which much waits


def late(seed: int) -> Placer:
    """Random devices; what the code reaches last launches first, as far as it can."""

    def place(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
        return backwards(graph, cluster, baechi.place(graph, cluster, f"random:{seed}").device_of)

    return place


def stacked(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
    """All on the first device but one group, which is on the last one; in the same order as `late`."""
    groups = list(graph.groups().values())
    alone = next(g for g in reversed(groups) if any(graph.nodes[n]["kind"] == "layer" for n in g))
    first, last = cluster.names[0], cluster.names[-1]
    return backwards(graph, cluster, {n: last if n in alone else first for n in graph.placed()})


def backwards(graph: baechi.LayerGraph, cluster: baechi.Cluster, device_of: Any) -> baechi.Plan:
    """An order that is the code's in reverse wherever the edges allow it."""
    code = {name: place for place, name in enumerate(graph.code_order())}
    placed = graph.subgraph(graph.placed())
    order = nx.lexicographical_topological_sort(placed, key=lambda name: -code[name])
    return baechi.Plan(graph, cluster, device_of, tuple(order))


CONFIGS: tuple[tuple[Placer, int, Any], ...] = (
    ("m-topo", 2, "host"),
    ("m-etf", 3, "threads"),
    ("random:0", 1, "host"),
    ("random:0", 2, "threads"),
    ("random:1", 3, "host"),
    ("random:2", 4, "threads"),
    (stacked, 2, "host"),
    (stacked, 2, "threads"),
    (late(0), 2, "host"),
    (late(1), 3, "threads"),
    (late(2), 4, "host"),
    (late(2), 3, False),
)


# --- little models


class Net(nn.Module):
    """Layers by name around a function that is its forward; `notes` is what that function saw."""

    def __init__(self, code: Callable[..., Any], layers: dict[str, Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.code = code
        self.notes: list[Any] = []
        for name, layer in layers.items():
            setattr(self, name, layer())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.notes = []
        return self.code(self, *args, **kwargs)


def one_tensor() -> dict[str, Any]:
    return {"x": noise(3, 8)}


@dataclass(frozen=True)
class Case:
    """A model, its inputs, by how much its gradients may be off, and whether something in it waits."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    tolerance: float
    waits: bool


CASES: list[Case] = []


def case(
    *,
    inputs: Callable[[], dict[str, Any]] = one_tensor,
    tolerance: float = 0.0,
    waits: bool = True,
    **layers: Callable[[], nn.Module],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a case of a function: the forward of a `Net` with these layers."""

    def add(code: Callable[..., Any]) -> Callable[..., Any]:
        build = seeded(lambda: Net(code, layers))
        CASES.append(Case(code.__name__, build, inputs, tolerance, waits))
        return code

    return add


SHIFTS: dict[str, Callable[[], nn.Module]] = dict.fromkeys("abcde", Shift)
LINEARS: dict[str, Callable[[], nn.Module]] = dict.fromkeys("abcde", linear)

# writes


@case(**SHIFTS)
def in_place_on_deferred(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    c = net.c(a)
    a.add_(1)
    a *= 2
    b[...] = a
    b[:, 0] = 0.5
    d = net.d(b)
    torch.relu_(a)
    e: Tensor = net.e(x)
    return c + d + a + e


@case(**SHIFTS, tolerance=ROUNDING)
def written_between_readers(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    b, c = net.b(h), net.c(h)
    h.mul_(3)
    d = net.d(h)
    h.sub_(1)
    e: Tensor = net.e(x)
    return b * c + d + h + e


@case(**SHIFTS)
def views_of_deferred(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    left, right = h[:, :4], h[:, 4:]
    left.mul_(0.5)
    b = net.b(h)
    right[0] = left.detach()[1]
    flat = h.view(-1)
    flat[3:5].zero_()
    h.T[2].add_(1)
    c = net.c(h)
    first, second = h.detach().chunk(2, dim=-1)
    first.mul_(2)
    one, *_ = h.detach().split(3, dim=-1)
    one.sub_(second[:, :3])
    d = net.d(h)
    e: Tensor = net.e(x)
    return b + c + d + h + e


@case(**SHIFTS)
def write_under_waiting_readers(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    b, c = net.b(q), net.c(q)
    q.mul_(-1)
    d = net.d(q)
    q[:, ::2] = 0.25
    e: Tensor = net.e(x)
    return b + c * 2 + d + q + net.a(e)


@case(**SHIFTS)
def input_written(net: Any, x: Tensor) -> Tensor:
    b, c = net.b(x), net.c(x)
    x.add_(1)
    d: Tensor = net.d(x)
    return b + c * 2 + d + net.e(x * 2)


@case(**SHIFTS)
def functions_that_write_when_asked(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    b, c = net.b(q), net.c(q)
    F.relu(q, inplace=True)
    d = net.d(q)
    F.leaky_relu(q - 1, 0.1, True)
    F.hardtanh(q, -0.5, 0.5, inplace=True)
    e: Tensor = net.e(x)
    return b + c * 2 + d + q + e


@case(**SHIFTS)
def lists_written(net: Any, x: Tensor) -> Tensor:
    q, r = x * 1, x * 2
    b, c = net.b(q), net.c(r)
    torch._foreach_add_([q, r], 1.0)
    d = net.d(q)
    e: Tensor = net.e(x)
    return b + c * 2 + d + q + r + e


@case(**SHIFTS)
def results_written_out(net: Any, x: Tensor) -> Tensor:
    room = torch.zeros_like(x)
    with torch.no_grad():
        a, b = net.a(x), net.b(x)
        c = net.c(room)
        torch.add(a, b, out=room)
        d = net.d(room)
        torch.mul(c, d, out=room)
    e: Tensor = net.e(x)
    return e + net.d(room) + room


@case(a=linear, b=linear, c=Shift, relu=lambda: nn.ReLU(inplace=True), d=linear)
def layers_that_write(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    c = net.c(a)
    r = net.relu(a)
    s = net.relu(b)
    d: Tensor = net.d(x)
    return c + r * s + a + d


@case(
    inputs=lambda: {"x": noise(6, 8)},
    a=linear,
    norm=lambda: nn.BatchNorm1d(8),
    b=linear,
    c=linear,
    tolerance=ROUNDING,
)
def siamese_norm(net: Any, x: Tensor) -> Tensor:
    first = net.norm(net.a(x))
    second = net.norm(net.b(x + 1))
    third = net.norm(x * 3)
    last: Tensor = net.c(x)
    return first * 2 + second - third + last


@case(a=linear, b=linear, cell=lambda: nn.GRUCell(8, 8), c=linear, tolerance=ROUNDING)
def cell_loop(net: Any, x: Tensor) -> Tensor:
    hidden, states = net.a(x), []
    for number in range(4):
        hidden = net.cell(net.b(x + number), hidden)
        states.append(hidden)
    c: Tensor = net.c(x)
    return torch.stack(states).sum(0) + c


# autograd


class Twice(torch.autograd.Function):
    """Doubles; its gradient is tripled, so that a lost one is seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return grads[0] * y * 3, grads[0] * x * 3


@case(**LINEARS)
def custom_function(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    twice: Tensor = Twice.apply(a, b)
    c = net.c(twice)
    d: Tensor = net.d(x)
    return c + d + Twice.apply(d, net.e(x))


def checkpointed(reentrant: bool) -> Callable[..., Any]:
    def block(net: Any, x: Tensor) -> Tensor:
        y: Tensor = net.c(torch.tanh(net.b(x)))
        return y * x

    def code(net: Any, x: Tensor) -> Tensor:
        a = net.a(x)
        one = checkpoint(block, net, a, use_reentrant=reentrant)
        two = checkpoint(net.e, one + x, use_reentrant=reentrant)
        d: Tensor = net.d(x)
        return one + two + d

    code.__name__ = f"checkpoint_{'reentrant' if reentrant else 'hooks'}"
    return code


for reentrant in (True, False):
    case(**LINEARS, tolerance=ROUNDING)(checkpointed(reentrant))


@case(**LINEARS, tolerance=ROUNDING)
def saved_tensors_through_hooks(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    packed: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tuple(tensor.shape))
        return tensor * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        b = net.b(torch.tanh(a))
        c = net.c(b * a)
    net.notes.append(packed)
    d: Tensor = net.d(x)
    return c + d + net.e(a)


@case(**LINEARS)
def autocast_with_a_shared_weight(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        a, b = net.a(x), net.b(x)
        first = net.c(a)
        second = net.c(b)
        net.notes.append((a.dtype, first.dtype))
    d = net.d(x)
    third: Tensor = net.e(second.float())
    return first.float() + third + d


@case(**LINEARS)
def gradients_off(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        a, b = net.a(x), net.b(x)
    with torch.inference_mode():
        i = net.b(x)
    c = net.c(a)
    net.notes.append([t.requires_grad for t in (a, b, i, c)] + [i.is_inference(), a.is_inference()])
    d: Tensor = net.d(x)
    return c + b * d + i.clone() + net.e(a.detach())


@case(**LINEARS)
def hooks_on_tensors(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    a.register_hook(lambda grad: grad * 2)
    c = net.c(a + b)
    c.retain_grad()
    c.register_hook(lambda grad: grad.clamp(max=0.001))
    d: Tensor = net.d(x)
    return c + d + net.e(x) * a


def doubled(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    assert type(result) is Tensor and all(type(arg) is Tensor for arg in args)
    return result * 2


def shifted(module: nn.Module, args: Any) -> Any:
    assert all(type(arg) is Tensor for arg in args)
    return (args[0] + 1,)


def hooked() -> nn.Module:
    layer, whole = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    layer.register_forward_hook(doubled)
    layer.register_forward_pre_hook(shifted)
    layer.register_full_backward_hook(lambda module, grads, out: (grads[0] * 3,))
    whole.register_forward_hook(doubled)
    whole.register_forward_pre_hook(shifted)
    return nn.Sequential(layer, whole, nn.Linear(8, 8))


@case(a=linear, b=hooked, c=linear, d=linear)
def hooks_on_layers(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    b = net.b(a)
    c, d = net.c(x), net.d(x)
    result: Tensor = b + c * d
    return result


@case(**LINEARS)
def gradient_inside_forward(net: Any, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        energy = net.a(x) + net.b(x)
        c = net.c(energy)
        (force,) = torch.autograd.grad(c.sum(), x, create_graph=net.training)
    d: Tensor = net.d(force)
    return d + net.e(x)


@case(**LINEARS)
def vmap_and_grad(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    dots = torch.func.vmap(torch.dot)(a, b)
    slopes = torch.func.grad(lambda t: (t * t).sum())(net.c(x))
    d: Tensor = net.d(x)
    return d * dots[:, None] + slopes + net.e(x)


# values on the host


@case(**LINEARS)
def control_flow(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    if a.sum() > b.sum():
        a = net.c(a)
    else:
        b = net.c(b)
    net.notes += [a.mean().item(), b[0].tolist(), int(a.argmax()), bool((b > 0).any()), float(b[0, 0])]
    d: Tensor = net.d(x)
    return a + b + d + net.e(x)


@case(**LINEARS)
def printed(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x).detach(), net.b(x)
    net.notes += [str(a), f"{b.sum().detach():.3f}", repr(a[0])]
    d: Tensor = net.d(x)
    return a + b + d + net.e(x)


@case(**LINEARS)
def questions(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)[:, 2:]
    net.notes += [a.shape, len(a), a.dtype, a.dim(), a.size(1), a.numel(), a.stride(), a.is_contiguous()]
    net.notes += [b.shape, b.stride(), b.is_contiguous(), b.storage_offset(), b.requires_grad, a.is_leaf]
    net.notes += [isinstance(a, Tensor), torch.is_tensor(a), isinstance(a, nn.Parameter), a.ndim, a.layout]
    net.notes += [a.grad_fn is None, a.is_floating_point(), a.element_size(), a is b, a in [a]]
    net.notes += [a.new_zeros(2).tolist(), a.grad, a.device.type, torch.numel(a), a.data.shape]
    c = torch.zeros(a.shape, device=a.device, dtype=a.dtype) + torch.ones_like(a)
    d: Tensor = net.d(x)
    return a + net.c(c) + d + F.pad(b, (1, 1))


@case(**LINEARS)
def as_numpy(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        a, b = net.a(x), net.b(x)
        net.notes.append(a.cpu().numpy().tolist())
        c = torch.from_numpy(b.cpu().numpy() * 2).to(b.device)
    d: Tensor = net.d(x)
    return d + net.e(x + c)


@case(**LINEARS)
def shapes_that_depend_on_values(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    positive = a[b > 0]
    rows = (b > 0).nonzero()
    net.notes += [positive.shape, rows.tolist(), torch.unique(b > 0).tolist()]
    c = torch.zeros_like(a).masked_scatter(b > 0, positive)
    c = c.index_add(0, rows[:1, 0], a[:1])
    d: Tensor = net.d(x)
    return net.c(c) + d + net.e(x)


@case(**LINEARS)
def iterated(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    rows = [row * number for number, row in enumerate(a)]
    first, second, third = b
    left, right = a.chunk(2, dim=1)
    d: Tensor = net.d(x)
    return torch.stack(rows) + first + second * third + d + torch.cat([right, left], 1)


# what layers take and return

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Both:
    """Two tensors and a number."""

    first: Tensor
    second: Tensor
    scale: float = 0.5


class Returns(nn.Module):
    """A layer that returns several tensors in some container."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, *, scale: Tensor | None = None, parts: Any = ()) -> Any:
        y, z = x + self.weight, x * self.weight
        y = y if scale is None else y * scale
        z = sum((part for row in parts for part in row["in"]), z)
        if self.kind == "dict":
            return {"y": y, "more": [z, None, {"z": z}], "number": None}
        if self.kind == "dataclass":
            return Both(y, z)
        return Pair(y, z) if self.kind == "named" else (y, z)


@case(
    t=lambda: Returns("tuple"), d=lambda: Returns("dict"), c=lambda: Returns("dataclass"), a=linear,
    n=lambda: Returns("named"), lstm=lambda: nn.LSTM(8, 8, batch_first=True), b=linear, e=linear,
    tolerance=ROUNDING,
)  # fmt: skip
def several_outputs(net: Any, x: Tensor) -> Any:
    y, z = net.t(net.a(x))
    mapped = net.d(z, scale=y, parts=[{"in": (x, y)}, {"in": [z]}])
    named = net.n(mapped["y"])
    both = net.c(named.second, parts=({"in": [named.first]},))
    out, (hidden, memory) = net.lstm(both.first[None])
    b, e = net.b(x), net.e(x)
    net.notes += [type(named) is Pair, both.scale, mapped["number"], mapped["more"][1]]
    return {"out": [out, (hidden, memory)], "both": both, "rest": mapped["more"][2]["z"] + b + e}


@case(a=linear, b=linear, shared=linear, c=linear, d=linear, tolerance=ROUNDING)
def called_several_times(net: Any, x: Tensor) -> Tensor:
    a = net.shared(net.a(x))
    b = net.shared(net.b(x))
    c = net.shared(a + b)
    d: Tensor = net.d(x)
    return c + net.c(a) + d


@case(layers=lambda: nn.ModuleList([nn.Linear(8, 8) for _ in range(6)]), tolerance=ROUNDING)
def a_list_in_any_order(net: Any, x: Tensor) -> Tensor:
    outputs = [layer(x) for layer in reversed(net.layers)]
    outputs = [net.layers[number](outputs[number - 1]) for number in (3, 0, 5)] + outputs
    return torch.stack(outputs).sum(0)


@case(**LINEARS, f=linear, inputs=lambda: {"x": noise(3, 8), "skip": noise(1)})
def branches_not_taken(net: Any, x: Tensor, skip: Tensor) -> Tensor:
    a = net.a(x)
    b = net.b(a) if skip > 5 else a
    c: Tensor = net.c(x) + net.e(x) * net.f(x)
    if skip < 5:
        return b + c
    d: Tensor = net.d(x)
    return b + c + d


@case(a=linear, b=lambda: nn.Dropout(0.5), c=linear, d=lambda: nn.Dropout(0.3), e=linear)
def drawn(net: Any, x: Tensor) -> Tensor:
    a = net.b(net.a(x))
    c = net.d(net.c(x))
    f = F.dropout(net.e(x), 0.4, net.training)
    n = torch.randn_like(f) * f
    d: Tensor = net.b(c)
    return a + c + f + n + d


@case(a=linear, b=linear, c=lambda: torch.compile(nn.Linear(8, 8), backend="eager"), d=linear)
def compiled_child(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    c = net.c(a)
    b, d = net.b(x), net.d(x)
    result: Tensor = b + c * d
    return result


@case(**LINEARS)
def tensors_as_objects(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    table = {a: "a", b: "b"}
    a.tag = "mine"
    alive = weakref.ref(b)
    c = net.c(a)
    d: Tensor = net.d(x)
    e = net.e(x)
    float(c.sum())
    net.notes += [table[a], table[b], a.tag, alive() is b, copy.copy(b) is b]
    return a + b + c + d + e


@case(**LINEARS)
def a_mode_of_the_code(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.device("cpu"):
        b = net.b(a) + torch.ones(8)
    c = net.c(x)
    result: Tensor = b + c * net.d(x)
    return result


@case(**LINEARS)
def sent_to_devices_and_dtypes(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    c = a.to(b.device).double() + b.to(torch.float64)
    d = net.c(c.float()).type_as(b).to(b)
    e: Tensor = net.e(x)
    return d + e + net.d(x)


# --- every case


def run(model: nn.Module, given: Case, cluster: baechi.Cluster) -> tuple[list[Result], list[Any]]:
    """Two steps on a cluster; the results, and what the code noted."""
    results, notes = [], []
    threads = threading.active_count()
    with cluster:
        for _ in range(2):
            results.append(step(model, given.inputs(), training=True))
            notes.append(getattr(model, "notes", None))
            assert torch._C._len_torch_function_stack() == 0
            assert threading.active_count() == threads
    return results, notes


@pytest.mark.parametrize("given", CASES, ids=lambda given: given.name)
def test_transparent(given: Case) -> None:
    """Outputs, buffers, gradients and all that the code saw are the plain model's, in any order."""
    plain = given.build()
    expected = [(step(plain, given.inputs(), training=True), plain.notes) for _ in range(2)]
    graph = baechi.profile(given.build(), given.inputs(), cluster=baechi.Cluster.virtual(1), training=True)
    waited = 0
    for placer, n, reorder in CONFIGS:
        cluster = baechi.Cluster.virtual(n)
        model = baechi.assign(given.build(), baechi.place(graph, cluster, placer), reorder=reorder)
        results, notes = run(model, given, cluster)
        waited += runtime_of(model).counts.get("deferred", 0)
        for (reference, seen), result, noted in zip(expected, results, notes, strict=True):
            assert_same(reference, result, tolerance=given.tolerance)
            assert seen == noted
    assert bool(waited) == given.waits


def runtime_of(model: nn.Module) -> Runtime:
    binding = binding_of(model)
    assert binding is not None
    return binding.runtime


@pytest.mark.parametrize("reorder", ["host", "threads"])
def test_what_a_waiting_layer_hands_through_is_sent_ahead(
    reorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that returns what it was given (dropout in inference) sends it to its readers when it has
    launched, also where it had to wait."""

    def code(self: Net, x: Tensor) -> Tensor:
        y, z = self.drop(self.a(x)), self.b(x)
        return self.c(y) + z

    model = Net(code, {"a": linear, "drop": nn.Dropout, "b": linear, "c": linear}).eval()
    cluster = baechi.Cluster.virtual(2)
    x = noise(4, 8)
    graph = baechi.profile(model, (x,), cluster=cluster)
    where = {node: cluster.names[node == "c" or node.startswith("glue")] for node in graph.placed()}
    order = ["b", *[node for node in graph.placed() if node != "b"]]  # a and the dropout wait for b
    expected = model(x)
    baechi.assign(model, baechi.Plan(graph, cluster, where, tuple(order)), reorder=reorder)
    pushed = []
    push = Step.push
    monkeypatch.setattr(Step, "push", lambda *args: (pushed.append(args[1]), push(*args)))
    with cluster, torch.no_grad():
        assert torch.equal(model(x), expected)
    assert runtime_of(model).launched == ["b", "a", "drop", "c"]
    assert len(pushed) == 2 and all(isinstance(tensor, Tensor) for tensor in pushed)  # the dropout's, and b's


@pytest.mark.parametrize("reorder", [False, "host"])
def test_what_says_a_shape_only_draws_nothing_to_it(reorder: Any) -> None:
    """`a.expand_as(b)` stays where `a` is, as in the graph: who computes with it runs where planned."""

    def code(self: Net, x: Tensor) -> Tensor:
        row, y = self.a(x)[:, :1].argsort(0), self.b(x)
        return y.gather(0, row.expand_as(y))

    model, cluster, x = Net(code, {"a": linear, "b": linear}), baechi.Cluster.virtual(2), noise(64, 8)
    expected = model(x)
    graph = baechi.profile(model, (x,), cluster=cluster, training=False)
    glue = {node for node in graph.placed() if graph.nodes[node]["kind"] == "glue"}
    where = {node: cluster.names[node == "b"] for node in graph.placed()}
    plan = baechi.Plan(graph, cluster, where)
    baechi.assign(model, plan, reorder=reorder)
    with cluster, torch.no_grad():
        assert torch.equal(model(x), expected)
        spans = baechi.last_step(model).spans
    planned, ran = (
        sorted([s.where for s in found if s.kind == "transfer"]) for found in (plan.timeline.spans, spans)
    )
    assert glue and planned == ran
