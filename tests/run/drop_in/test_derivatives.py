"""Derivatives of every kind: a second backward, calls with other weights, `torch.func`, forward mode."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.drop_in.chain import chain, spread, values
from run.every_way import Way, batch, every_way, rig, same
from same import identical
from torch import Tensor, nn
from torch.autograd import forward_ad

from baechi.errors import BaechiError


@every_way
def test_second_backward(way: Way) -> None:
    """A second backward through one graph, with `retain_graph`, and a gradient asked for in between."""

    def run(model: nn.Module) -> Any:
        x = batch().requires_grad_()
        loss = model(x).pow(2).mean()
        loss.backward(retain_graph=True)
        (grad,) = torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
        return loss.detach(), grad, x.grad

    same(way, run)


def in_double() -> nn.Module:
    """Its weights are used in forward and, for a second derivative, in backward."""
    return rig().double()


def doubles() -> Tensor:
    """A batch for it."""
    return batch().double()


@every_way
def test_gradients_of_gradients(way: Way) -> None:
    """A penalty on the gradient by the input."""

    def run(model: nn.Module) -> Any:
        x = doubles().requires_grad_()
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (grad.pow(2).sum() + out.pow(2).sum()).backward()
        return out.detach(), grad.detach()

    same(way, run, build=in_double, inputs=doubles, tolerance=1e-10)


@every_way
def test_functional_call(way: Way) -> None:
    """A call with other weights and buffers computes with those, and gradients reach them."""

    def run(model: Any) -> Any:
        weights = {name: (2 * weight.detach()).requires_grad_() for name, weight in model.named_parameters()}
        buffers = {name: buffer.clone() + 1 for name, buffer in model.named_buffers()}
        out = torch.func.functional_call(model, (weights, buffers), (batch(),), {"scale": 0.5})
        grads = torch.autograd.grad(out.sum(), list(weights.values()))
        again = torch.func.functional_call(model, {"head.bias": torch.ones_like(model.head.bias)}, (batch(),))
        return out.detach(), grads, buffers, again.detach()

    same(way, run)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Weights as arguments."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


def loss_by(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """The loss as a function of weights and one sample."""

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, weights, (x[None],))
        return out.pow(2).sum()

    return loss


def grad(model: nn.Module) -> Any:
    return torch.func.grad(loss_by(model))(weights_of(model), batch()[0])


def grad_by_sample(model: nn.Module) -> Any:
    return torch.vmap(torch.func.grad(loss_by(model)), (None, 0))(weights_of(model), batch(3))


def jacobians(model: nn.Module) -> Any:
    reverse, forward = torch.func.jacrev(model)(batch(2)), torch.func.jacfwd(model)(batch(2))
    return reverse.detach(), forward.detach(), torch.autograd.functional.jacobian(model, batch(2))


def jvp(model: nn.Module) -> Any:
    return torch.func.jvp(model, (batch(),), (batch(seed=2),))


def jvp_of_weights(model: nn.Module) -> Any:
    weights = weights_of(model)
    ones = {name: torch.ones_like(weight) for name, weight in weights.items()}
    return torch.func.jvp(
        lambda given: torch.func.functional_call(model, given, batch()), (weights,), (ones,)
    )


def dual_numbers(model: nn.Module) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(model(forward_ad.make_dual(batch(), batch(seed=2)))))


def without_gradients(function: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    """The same with gradients off: forward mode goes on all the same."""

    def run(model: nn.Module) -> Any:
        with torch.no_grad():
            return function(model)

    return run


FUNCTIONS: dict[str, Callable[[nn.Module], Any]] = {
    function.__name__: function
    for function in (grad, grad_by_sample, jacobians, jvp, jvp_of_weights, dual_numbers)
}
FUNCTIONS["jvp without gradients"] = without_gradients(jvp)
FUNCTIONS["dual numbers without gradients"] = without_gradients(dual_numbers)


@pytest.mark.parametrize("name", FUNCTIONS)
@every_way
def test_transforms(way: Way, name: str) -> None:
    """Transforms of the model as a function, of its inputs or of its weights."""

    def run(model: nn.Module) -> Any:
        found = FUNCTIONS[name](model.eval())
        return {key: found[key] for key in sorted(found)} if isinstance(found, dict) else found

    same(way, run, waits=False)


@every_way
def test_anomaly_detection(way: Way) -> None:
    """Autograd looks for NaN in each gradient as soon as it is there: it has arrived by then."""

    def run(model: nn.Module) -> Any:
        with torch.autograd.set_detect_anomaly(True):
            out = model(batch())
            out.pow(2).sum().backward()
            with pytest.raises(RuntimeError, match="nan values"):
                (model(batch()).sum() * torch.nan).backward()
        return out.detach()

    same(way, run)


@every_way
def test_tracing_and_export_are_refused(way: Way) -> None:
    """What would be recorded are transfers; a model that is restored can be traced and exported."""
    model, cluster = way.distribute(rig, batch)
    model.eval()
    for record in (torch.jit.trace, torch.export.export):
        with cluster, pytest.raises(BaechiError, match="restore"):
            record(model, (batch(),))
    assert torch.equal(model(batch()), rig().eval()(batch()))


def test_looking_for_nan_raced_with_gradients_on_their_way() -> None:
    """With `detect_anomaly` autograd reads what each node returns at once; a gradient that was sent had
    not arrived then, so that on real devices NaN could be found where there is none."""
    plain, model = chain(), chain()
    cluster = spread(model)
    plain(values()).sum().backward()
    with cluster, torch.autograd.set_detect_anomaly(True):
        model(values()).sum().backward()
    assert all(identical(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_tangents_were_left_behind() -> None:
    """In forward mode a transfer copied the value and not its tangent: silently there was none any more."""
    plain, model = chain(), chain()
    cluster = spread(model)
    tangents = []
    with cluster, torch.no_grad(), forward_ad.dual_level():
        for each in (plain, model):
            out = each(forward_ad.make_dual(values(), torch.ones(3, 4)))
            tangents.append(forward_ad.unpack_dual(out).tangent)
    assert identical(tangents[0], tangents[1])


def test_exported_models_had_transfers_in_them() -> None:
    """`torch.export` recorded what the runtime did with the example, and so did `torch.jit.trace`."""
    model = chain()
    spread(model)
    with pytest.raises(BaechiError, match="restore"):
        torch.export.export(model, (values(),))
