"""Bugs that were, each with its story."""

import copy
import gc
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from same import identical
from torch import nn

import baechi
from baechi.backend.virtual.machine.record import StepRecord


class Two(nn.Module):
    """Two layers and a forward that is given."""

    def __init__(self, forward: Callable[..., Any], **more: Any) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 4), forward
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def same_on_two_devices(
    build: Callable[[], nn.Module], steps: int = 2, training: bool = True, by_hand: bool = True
) -> nn.Module:
    """A model that was captured and distributed does `steps` calls as its plain twin does, and in
    training the backward of the last one."""
    torch.manual_seed(0)
    plain = build().train(training)
    torch.manual_seed(0)
    model = build().train(training)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    expected = [plain(x.clone()) for _ in range(steps)]
    cluster = baechi.Cluster.virtual(2)
    where: Any = {"device_map": {"a": 0, "b": 1, "": 1}} if by_hand else {"placer": "random:0"}
    baechi.distribute(model, x.clone(), cluster=cluster, **where)
    with cluster:
        results = [model(x.clone()) for _ in range(steps)]
        if training:
            for last in (expected[-1], results[-1]):
                (last * last).sum().backward()
    assert all(identical(a, b) for a, b in zip(expected, results, strict=True))
    grads = [[p.grad for p in network.parameters() if p.grad is not None] for network in (plain, model)]
    assert len(grads[0]) == len(grads[1]) and bool(grads[0]) == training
    assert all(identical(a, b) for a, b in zip(*grads, strict=True))
    return model


def test_weights_replaced_in_forward() -> None:
    """An EMA teacher assigns `p.data` in forward: under fake tensors its memory became a fake one,
    and the weights were gone."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.b.weight.data = 0.9 * m.b.weight.data + 0.1 * m.a.weight.data
        return m.b(m.a(x))

    same_on_two_devices(lambda: Two(forward), by_hand=False)


@pytest.mark.parametrize("look", [False, True], ids=["fake tensors", "real tensors"])
def test_weights_written_in_forward(look: bool) -> None:
    """A forward that writes a parameter (a data-dependent initialization) ran once too often: torch
    runs operations on real tensors alone for real, even under fake ones."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            m.scale.mul_(1.5)
        h = m.a(x)
        return m.b(h) * m.scale.detach() if not look or float(h.detach().sum()) > -1e9 else h

    same_on_two_devices(lambda: Two(forward, scale=nn.Parameter(torch.ones(4))))


def caches() -> list[tuple[str, Callable[[], Any], Callable[[Any, torch.Tensor], torch.Tensor]]]:
    def nested(store: Any, h: torch.Tensor) -> torch.Tensor:
        store["deep"].setdefault("h", h.detach())
        return store["deep"]["h"]

    def queue(store: Any, h: torch.Tensor) -> torch.Tensor:
        store.append(h.detach())
        return torch.stack(list(store)).mean(0)

    def attribute(store: Any, h: torch.Tensor) -> torch.Tensor:
        store.last = h.detach() if not hasattr(store, "last") else store.last
        return store.last  # type: ignore[no-any-return]

    def plain_tensor(store: Any, h: torch.Tensor) -> torch.Tensor:
        store.add_(h.detach())
        return store.clone()

    def drawn(store: Any, h: torch.Tensor) -> torch.Tensor:
        return h * store.random()

    return [
        ("nested dict", lambda: {"deep": {}}, nested),
        ("deque", lambda: deque(maxlen=3), queue),
        ("object", lambda: type("Store", (), {})(), attribute),
        ("tensor that is no buffer", lambda: torch.zeros(3, 4), plain_tensor),
        ("generator of the model's own", lambda: random.Random(3), drawn),
    ]


@pytest.mark.parametrize("name, make, use", caches(), ids=[case[0] for case in caches()])
def test_caches_of_a_model(name: str, make: Callable[[], Any], use: Callable[..., torch.Tensor]) -> None:
    """What a model keeps between calls kept fake tensors of the capture, and the next real call
    answered from memory that nobody had written."""
    same_on_two_devices(lambda: Two(lambda m, x: m.b(use(m.store, m.a(x))), store=make()), steps=3)


@dataclass
class State:
    """What layers hand on to each other."""

    h: torch.Tensor


class Appends(nn.Module):
    """A layer that hands its result on in a list, a dict and a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, box: dict[str, torch.Tensor], skips: list[torch.Tensor], state: State) -> Any:
        box["h"] = box["h"] @ self.weight
        skips.append(box["h"])
        state.h = state.h + box["h"]
        return box


def test_containers_changed_by_a_layer() -> None:
    """A layer that received copies got copies of the containers too, and what it put in was lost."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Appends(), Appends()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            box, skips, state = {"h": x}, [x], State(x)
            handed_on = self.b(self.a(box, skips, state), skips, state=state)
            assert handed_on is box and len(skips) == 3
            return box["h"] + sum(skips) + state.h

    same_on_two_devices(Model)


def test_copies_may_be_written_by_a_learned_layer() -> None:
    """`x += self.position` on a tensor that travelled raised: the copy was a view made without
    gradients, which autograd does not let anybody write."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += self.position
            return x

    same_on_two_devices(lambda: Two(lambda m, x: m.b(m.adds(x)) + m.a(x), adds=Adds()))


def test_a_buffer_first_seen_when_written() -> None:
    """A buffer that a layer gets as an argument and glue writes first had a holder and no owner."""
    model = Two(lambda m, x: m.b(m.a(x)) + m.count)
    model.register_buffer("count", torch.zeros(4))
    model.function = lambda m, x: (m.count.copy_(torch.ones(4)), m.b(m.a(x)) + m.count)[1]
    graph = baechi.profile(model, torch.ones(3, 4), cluster=baechi.Cluster.virtual(2))
    assert graph.total("buffer_bytes") == 16
    baechi.distribute(model, torch.ones(3, 4), cluster=baechi.Cluster.virtual(2), placer="random:0")


SHARED = nn.ReLU()


def test_activations_shared_by_all_models() -> None:
    """Some libraries make one activation module for the whole process: distributing one model made
    every other one look distributed, for good."""

    def build() -> nn.Module:
        return Two(lambda m, x: m.b(m.act(m.a(x))), act=SHARED)

    plain, x = build(), torch.ones(3, 4)
    expected = plain(x)
    first, second = same_on_two_devices(build), same_on_two_devices(build)
    assert identical(plain(x), expected)
    x = torch.randn(2, 4)
    for model in (first, second):
        copied = copy.deepcopy(model)
        assert identical(copied(x), model(x))
    baechi.restore(second)
    assert identical(first(x), copy.deepcopy(first)(x))
    del model, copied, first  # not restored, but gone: it holds nothing any more
    gc.collect()
    baechi.restore(baechi.distribute(second, x, cluster=baechi.Cluster.virtual(2), placer="random:0"))
    assert "forward" not in vars(SHARED)


@dataclass
class Square:
    """What `torch.func` takes the gradient of."""

    weight: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * self.weight) ** 2).sum()


def test_functional_transforms_in_forward() -> None:
    """`torch.func.grad` allows no saved-tensor hooks, so nothing with it could be captured; `vmap`
    over tensors of two devices found no device in its wrapped tensors."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h, g = m.a(x), m.b(x)
        slopes = torch.func.grad(Square(m.scale))(h)
        return torch.vmap(torch.mul)(h, g) + slopes

    for training in (True, False):
        same_on_two_devices(lambda: Two(forward, scale=nn.Parameter(torch.ones(4))), training=training)


class Product(torch.autograd.Function):
    """Saves what it reads."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return grad * b, grad * a


def test_custom_function_over_two_layers() -> None:
    """No mode sees `Function.apply`, and its backward reads what its forward saved: all that it
    reads lies on one device."""
    model = Two(lambda m, x: Product.apply(m.a(x), m.b(x)))
    graph = baechi.profile(model, torch.ones(3, 4), cluster=baechi.Cluster.virtual(2))
    assert len({graph.nodes[n].get("colocate") for n in ("a", "b", "glue:/Product#0")}) == 1


def test_scripted_layers() -> None:
    """The class of a script module has no `forward` that could be looked up."""

    def build() -> nn.Module:
        return Two(lambda m, x: m.b(m.script(m.a(x))), script=torch.jit.script(nn.Linear(4, 4)))

    same_on_two_devices(build)


def test_running_statistics_of_a_module_in_a_plain_list() -> None:
    """`batch_norm` writes its statistics and no version says so: those of a module that is not
    registered lie on the host, and the update went to a copy."""

    def build() -> nn.Module:
        return Two(lambda m, x: m.b(m.norms[0](m.a(x))) + m.norms[0].running_mean, norms=[nn.BatchNorm1d(4)])

    same_on_two_devices(build, steps=3)


def test_measurements_of_old_steps_were_kept() -> None:
    """The emulator notes for the last 100,000 layers which autograd nodes they made, so that backward's work
    is that of their step. With each note it kept all that was measured of the step: 90 KB a step of
    a small model, 180 MB in 2,000 steps. A backward of such a step still counts with no other."""
    model, x = Two(lambda m, x: m.b(torch.relu(m.a(x)))), torch.ones(3, 4)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, device_map={"a": 0, "b": 1, "": 1})

    def records() -> list[object]:
        return [one for one in gc.get_objects() if type(one) is StepRecord]

    of_others = records()  # held, so that their ids stay theirs
    with cluster:
        first = model(x).sum()
        for _ in range(10):
            model(x)
        forward = baechi.last_step(model).counters["kernels"]
        first.backward()
        assert baechi.last_step(model).counters["kernels"] == forward
        gc.collect()
        assert len({id(one) for one in records()} - {id(one) for one in of_others}) <= 2
