"""What the caller hands in lies where it lay, and what comes back lies beside it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from order.interleaved import distribute
from run.worlds import Net, linear
from torch import Tensor, nn

HANDED_ON: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "dropout": lambda: nn.Dropout(0.0),
    "flatten": nn.Flatten,
}


def after_nothing(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    out: Tensor = net.d(net.b(x) + net.c(x))
    return out


def nothing_at_all(net: Any, x: Tensor) -> Any:
    return {"same": net.a(x), "made": net.b(x)}


def copied_inside(net: Any, x: Tensor) -> Tensor:
    held = copy.deepcopy({"x": x, "shallow": copy.copy(x)})
    out: Tensor = net.d(net.b(held["x"]) + net.c(held["shallow"]) * net.a(x))
    return out


def places(*values: Any) -> set[str]:
    return {str(value.device) for value in values}


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("kind", HANDED_ON)
def test_a_first_layer_that_does_nothing(kind: str, reorder: Any) -> None:
    layers = {"a": HANDED_ON[kind], "b": linear, "c": linear, "d": linear}
    build = seeded(lambda: Net(after_nothing, layers))
    x, target, model = noise(3, 8), noise(3, 8), build()
    with distribute(model, x, {"": 0, "a": 1, "b": 1}, list("acbd"), reorder=reorder):
        out = model(x)
        assert places(x, out) == {"cpu"}
        loss = nn.functional.mse_loss(out, target)
        loss.backward()
    assert torch.equal(out, build()(x))


def test_an_output_that_is_the_input() -> None:
    model = Net(nothing_at_all, {"a": nn.Identity, "b": linear})
    x = noise(3, 8).requires_grad_()
    with distribute(model, x, {"": 0, "a": 1}, []):
        out = model(x)
        assert places(x, *out.values()) == {"cpu"}
        (out["same"] * out["made"]).sum().backward()
        assert x.grad is not None and places(x.grad) == {"cpu"}


@pytest.mark.parametrize("copier", [copy.deepcopy, copy.copy, lambda batch: {"x": batch["x"].clone()}])
def test_a_copied_batch(copier: Callable[[Any], Any]) -> None:
    build = seeded(lambda: Net(after_nothing, {"a": linear, "b": linear, "c": linear, "d": linear}))
    batch, model = {"x": noise(3, 8)}, build()
    with distribute(model, batch, {"": 0, "b": 1}, []):
        copied = copier(batch)
        out = model(**copied)
        assert places(batch["x"], copied["x"], out) == {"cpu"}
        assert torch.equal(out, build()(**batch))


def test_a_deep_copy_lies_where_the_tensor_lies() -> None:
    build = seeded(lambda: Net(copied_inside, {"a": linear, "b": linear, "c": linear, "d": linear}))
    x, model = noise(3, 8), build()
    with distribute(model, x, {"": 0, "b": 1}, []):
        there = torch.ones(3, 4).to("cpu:1")
        pair = copy.deepcopy({"whole": there, "part": there[1:]})
        assert places(there, *pair.values()) == {"cpu:1"}
        pair["whole"].mul_(2)
        assert pair["part"].cpu().eq(2).all() and there.cpu().eq(1).all()
        assert places(copy.deepcopy(model).b.weight) == {"cpu:1"}
        out = model(x)
        assert places(x, out) == {"cpu"}
    assert torch.equal(out, build()(x))
