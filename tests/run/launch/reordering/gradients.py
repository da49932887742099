"""Models that do something with autograd."""

from collections.abc import Callable
from typing import Any

import torch
from run.launch.reordering.case import LINEARS, case
from run.launch.reordering.models import linear
from same import ROUNDING
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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


@case(waits=False, **LINEARS)
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


@case(waits=False, a=linear, b=hooked, c=linear, d=linear)
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
