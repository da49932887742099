"""Hooks on modules, tensors and weights: each sees, and may change, what it does in the plain model."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from architectures.base import seeded
from run.drop_in.chain import chain, spread, values
from run.every_way import Rig, Way, batch, every_way, same
from same import identical
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as every_module

HOOKED = ("enter", "first.left.2", "first.left", "first.right.0", "second", "side", "late.2", "")
"""Layers, containers, and the model itself."""


class Notes:
    """What hooks were given, by who they hang on: backward visits branches in another order.

    Args:
        change: whether the hooks hand on something else.
    """

    def __init__(self, *, change: bool = False) -> None:
        self.change = change
        self._seen: dict[str, list[Any]] = {}

    def note(self, what: str, *values: Any) -> None:
        """A hook was called."""
        tensors = [tensor for value in values for tensor in (value if isinstance(value, tuple) else (value,))]
        real = (Tensor, FakeTensor)  # the latter while the model is captured
        assert all(type(tensor) in real for tensor in tensors if tensor is not None), what
        copies = [None if tensor is None else tensor.detach().clone() for tensor in tensors]
        self._seen.setdefault(what, []).append(copies)

    def scaled(self, grads: tuple[Tensor | None, ...], by: float) -> Any:
        """What a hook on gradients returns."""
        return tuple(None if grad is None else grad * by for grad in grads) if self.change else None

    def taken(self) -> dict[str, Any]:
        """All of it; from now on there is nothing."""
        seen, self._seen = self._seen, {}
        return dict(sorted(seen.items()))


def hang_on(module: nn.Module, name: str, notes: Notes) -> None:
    """Every kind of hook on a module."""

    def before(module: Any, args: Any) -> Any:
        notes.note(f"{name}: before", args)
        return (args[0] * 1.5, *args[1:]) if notes.change else None

    def before_with_keywords(module: Any, args: Any, kwargs: Any) -> None:
        notes.note(f"{name}: before, with keywords", args, *kwargs.values())

    def after(module: Any, args: Any, result: Any) -> Any:
        notes.note(f"{name}: after", args, result)
        return result + 0.5 if notes.change else None

    def after_always(module: Any, args: Any, kwargs: Any, result: Any) -> None:
        notes.note(f"{name}: after, always", args, *kwargs.values(), result)

    def backward_before(module: Any, grads: Any) -> Any:
        notes.note(f"{name}: backward before", grads)
        return notes.scaled(grads, 0.5)

    def backward_after(module: Any, grads: Any, grads_out: Any) -> Any:
        notes.note(f"{name}: backward after", grads, grads_out)
        return notes.scaled(grads, 3)

    module.register_forward_pre_hook(before)
    module.register_forward_pre_hook(before_with_keywords, with_kwargs=True)
    module.register_forward_hook(after)
    module.register_forward_hook(after_always, with_kwargs=True, always_call=True)
    module.register_full_backward_pre_hook(backward_before)
    module.register_full_backward_hook(backward_after)


def train(model: nn.Module) -> Tensor:
    """Forward and backward of one batch; the batch has a gradient, too."""
    x = batch().requires_grad_()
    out: Tensor = model(x)
    out.pow(2).sum().backward()
    assert x.grad is not None
    return torch.cat([out.detach(), x.grad], 1)


@pytest.mark.parametrize("change", [False, True], ids=["looks", "changes"])
@every_way
def test_hooks_on_modules(way: Way, change: bool) -> None:
    """Hooks of every kind, on layers, on containers and on the model, hung on after `distribute`."""

    def run(model: nn.Module) -> Any:
        notes = Notes(change=change)
        for name in HOOKED:
            hang_on(model.get_submodule(name), name, notes)
        return train(model), train(model), notes.taken()

    same(way, run, waits=False)  # nothing waits where modules have hooks


class Hooked(Rig):
    """Hooks that hang on it from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = Notes(change=True)
        for name in HOOKED:
            hang_on(self.get_submodule(name), name, self.notes)


hooked = seeded(Hooked)


@every_way
def test_hooks_that_were_there_before(way: Way) -> None:
    """The same hooks, hung on before `distribute`: they run in the capture as well."""

    def run(model: Any) -> Any:
        model.notes.taken()
        return train(model), model.notes.taken()

    same(way, run, build=hooked, waits=False)


@every_way
def test_hooks_on_all_modules(way: Way) -> None:
    """Hooks for every module of the process see what each of the model's modules is given and returns."""

    def run(model: nn.Module) -> Any:
        names = {module: name for name, module in model.named_modules()}
        notes = Notes()

        def before(module: nn.Module, args: Any) -> None:
            notes.note(f"{names[module]}: before", args)

        def after(module: nn.Module, args: Any, result: Any) -> None:
            notes.note(f"{names[module]}: after", args, result)

        with ExitStack() as stack:
            stack.callback(every_module.register_module_forward_pre_hook(before).remove)
            stack.callback(every_module.register_module_forward_hook(after).remove)
            return train(model), notes.taken()

    same(way, run, waits=False)  # nothing waits across a hook


class HooksOnTensors(Rig):
    """Its own code hangs hooks on what its layers make."""

    notes = Notes()

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: float = 1.0) -> Tensor:
        near, far = x[:, :3], x[:, 3:]
        made = {"left": self.first.left(self.enter(near)), "side": self.side(far), "late": self.late(x)}
        for name, tensor in made.items():
            tensor.register_hook(lambda grad, name=name: self.notes.note(f"{name}: hook", grad))
            tensor.register_hook(lambda grad: grad * 2)
            tensor.retain_grad()
            assert tensor.grad_fn is not None
            tensor.grad_fn.register_hook(lambda _, out, name=name: self.notes.note(f"{name}: node", *out))
        torch.autograd.graph.register_multi_grad_hook(
            list(made.values()), lambda grads: self.notes.note("all of them", *grads)
        )
        self.__dict__["made"] = made
        out: Tensor = self.head(self.second(made["left"] + made["side"])) + made["late"]
        return out


hooks_on_tensors = seeded(HooksOnTensors)


@every_way
def test_hooks_on_tensors(way: Way) -> None:
    """Hooks on tensors and on their nodes, and gradients that tensors are told to keep."""

    def run(model: Any) -> Any:
        model.notes.taken()
        result = train(model)
        kept = {name: tensor.grad for name, tensor in model.made.items()}
        return result, kept, model.notes.taken()

    same(way, run, build=hooks_on_tensors)


@every_way
def test_hooks_on_weights(way: Way) -> None:
    """Hooks on parameters change their gradients, or take a step as soon as a gradient is there."""

    def run(model: nn.Module) -> Any:
        seen: dict[str, Tensor] = {}

        def step(weight: Tensor) -> None:
            assert weight.grad is not None
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None

        for name, weight in model.named_parameters():
            weight.register_hook(lambda grad, name=name: seen.update({name: grad.clone()}))
            weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
            if name.startswith("first"):
                weight.register_post_accumulate_grad_hook(step)
        return train(model), train(model), dict(sorted(seen.items()))

    same(way, run)


def test_hooks_saw_what_hooks_before_them_had_deferred() -> None:
    """Hooks got real values, but the first of several may compute with what a layer wrote in place and
    that waited: the second was handed a deferred value. And so may a hook that calls another layer."""
    seen: list[type] = []

    def scale(module: Any, args: Any) -> Any:
        return (args[0] * 1.5,)

    def look(module: Any, args: Any) -> None:
        seen.append(type(args[0]))

    plain, model = chain(), chain()
    cluster = spread(model)
    for each in (plain, model):
        each.get_submodule("b").register_forward_pre_hook(lambda module, args, each=each: (each.c(args[0]),))
        each.get_submodule("b").register_forward_pre_hook(scale)
        each.get_submodule("b").register_forward_pre_hook(look)
    with cluster:
        assert identical(plain(values()), model(values()))
    assert seen == [Tensor, Tensor]
