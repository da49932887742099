"""What a waiting layer was given is what it was when the code reached it, whatever the code does later."""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from order.interleaved import distribute
from order.unforeseen import captured
from run.worlds import Net, linear
from torch import Tensor, nn

from baechi import Cluster

pytestmark = pytest.mark.default_cases(2)


class Total(nn.Module):
    """Adds up all tensors within what it is given, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(8, 8) * 0.3)

    def forward(self, given: Any) -> Tensor:
        return sum(_tensors(given), torch.zeros(())) @ self.weight


class Memory(Total):
    """Adds up what hangs on it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward([x, self.memory])


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any = None


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif isinstance(value, Slotted):
        value = [value.value]
    elif callable(value):
        value = [value()]
    elif hasattr(value, "__dict__"):
        value = list(vars(value).values())
    return [] if value is None else [tensor for item in value for tensor in _tensors(item)]


def grows_list(net: Any, x: Tensor, given: list[Any]) -> Tensor:
    a = net.a(x)
    given.append(a)
    b = net.b(given)
    given.append(b)
    c = net.c(x)
    given.insert(0, c)
    d = net.d(given)
    given.clear()
    return b + c * d


def grows_nested(net: Any, x: Tensor) -> Tensor:
    given: dict[str, Any] = {"deep": [[x]], "pair": (x, [x])}
    b = net.b(given)
    given["deep"][0].append(b)
    given["pair"][1].append(b)
    c = net.c(x)
    given["deep"].append([c])
    return b + c * net.d(given)


def changes_dict(net: Any, x: Tensor) -> Tensor:
    given: dict[str, Any] = OrderedDict(x=x, y=x * 2)
    b = net.b(given)
    del given["x"]
    given["b"] = b
    given.move_to_end("y")
    c = net.c(x)
    given["y"] = c
    return b + c * net.d(given)


def grows_view(net: Any, x: Tensor) -> Tensor:
    held = {"x": x, "a": net.a(x)}
    b = net.b(held.values())
    held["b"] = b
    c = net.c(x)
    held["x"] = c
    return b + c * net.d(held.values())


def changes_attribute(make: Callable[[Any], Any], name: str) -> Callable[..., Tensor]:
    def code(net: Any, x: Tensor) -> Tensor:
        given = make(net.a(x))
        b = net.b(given)
        setattr(given, name, b)
        c = net.c(x)
        setattr(given, name, [c, b])
        return b + c * net.d(given)

    return code


def grows_deque(net: Any, x: Tensor) -> Tensor:
    held = deque([x, net.a(x)], maxlen=3)
    b = net.b(held)
    held.append(b)
    c = net.c(x)
    held.append(c)
    return b + c * net.d(held)


def changes_closure(net: Any, x: Tensor) -> Tensor:
    value = net.a(x)
    b = net.b(lambda: value)
    value = b * 2
    c = net.c(x)
    d = net.d(lambda: value)
    value = c
    return b + c * d


def gives_iterators(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    b = net.b(tensor for tensor in (x, a))
    c = net.c(x)
    return b + c * net.d(iter([a, b, c]))


CODES: dict[str, Callable[..., Tensor]] = {
    "list": lambda net, x: grows_list(net, x, [x]),
    "nested": grows_nested,
    "dict": changes_dict,
    "view": grows_view,
    "object": changes_attribute(lambda a: SimpleNamespace(value=a), "value"),
    "dataclass": changes_attribute(lambda a: Pair(a), "first"),
    "slots": changes_attribute(Slotted, "value"),
    "deque": grows_deque,
    "closure": changes_closure,
    "iterators": gives_iterators,
}


def keeps_on_layer(net: Any, x: Tensor) -> Tensor:
    net.b.memory = {"deep": [x], "object": SimpleNamespace(value=net.a(x))}
    b = net.b(x)
    net.b.memory["deep"].append(b)
    net.b.memory["object"].value = b
    c = net.c(x)
    net.d.memory = net.b.memory
    d = net.d(x)
    net.b.memory["deep"].clear()
    return b + c * d


def built(name: str) -> nn.Module:
    """A model with one of the codes behind a first layer, which lies on another device."""
    code, kind = (keeps_on_layer, Memory) if name == "layer" else (CODES[name], Total)
    layers = {"z": linear, "a": linear, "b": kind, "c": linear, "d": kind}
    if name in ("nested", "dict"):
        layers.pop("a")
    return seeded(lambda: Net(lambda net, x: code(net, net.z(x)), layers).double())()


def spread(model: Any, x: Tensor, reorder: Any = True) -> Cluster:
    """All layers but the first on one device, the third one before the second."""
    order = [layer for layer in ("z", "a", "c", "b", "d") if layer in dict(model.named_children())]
    return distribute(model, x, {"": 0, "z": 1}, order, reorder=reorder)


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("inside", [True, False], ids=["emulated", "outside"])
@pytest.mark.parametrize("name", [*CODES, "layer"])
def test_a_layer_sees_what_it_was_given(name: str, inside: bool, reorder: Any) -> None:
    x = noise(3, 8).double()
    expected, model = built(name)(x), built(name)
    cluster = spread(model, x, reorder)
    with cluster if inside else nullcontext():
        found = model(x)
    assert torch.equal(found, expected)


class Hands(Total):
    """Returns the very list that it was given, beside a sum."""

    def forward(self, given: list[Tensor]) -> tuple[list[Tensor], Tensor]:  # type: ignore[override]
        return given, super().forward(given)


class Appends(Total):
    """Writes to the list that it is given."""

    def forward(self, given: list[Tensor]) -> Tensor:
        total = super().forward(given)
        given.append(total)
        return total


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_a_list_that_is_handed_on_is_the_same_list(reorder: Any) -> None:
    def code(net: Any, x: Tensor) -> Tensor:
        held = [x, net.a(x)]
        same, b = net.b(held)
        same.append(b)
        c = net.c(x)
        total = net.e(held)
        again, d = net.d(held)
        again.append(c)
        return torch.stack([*held, c * d, total]).sum(0)

    layers = {"a": linear, "b": Hands, "c": linear, "d": Hands, "e": Appends}
    build = seeded(lambda: Net(code, layers))
    x = noise(3, 8)
    model = build()
    with distribute(model, x, {"": 0, "d": 1, "e": 1}, list("acbed"), reorder=reorder):
        assert torch.equal(model(x), build()(x))


class Halves(nn.Module):
    """Makes a tensor, and returns two views of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = x * self.weight
        return made, made[:, 2:6]


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("inside", [True, False], ids=["emulated", "outside"])
def test_views_of_what_a_layer_made_are_one_memory(inside: bool, reorder: Any) -> None:
    """The code writes through one view while it waits, and reads through the other."""

    def code(net: Any, x: Tensor) -> Tensor:
        z = net.z(x)
        whole, part = net.b(z)
        part.mul_(2)
        read = whole.sum()
        total = 1.0 if captured() else float(read)  # only what this needs launches now
        out: Tensor = net.c(z) * total + net.d(whole)
        return out

    layers = {"z": linear, "b": Halves, "c": linear, "d": linear}
    build = seeded(lambda: Net(code, layers).double())
    x, model = noise(3, 8).double(), build()
    cluster = distribute(model, x, {"": 0, "z": 1}, ["z", "c", "b", "d"], reorder=reorder)
    with cluster if inside else nullcontext(), torch.no_grad():
        assert torch.equal(model(x), build()(x))
