"""What the caller had set, and the random state: a layer that waits launches under these."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from run.protections.models import Shift, linears, shifts
from run.protections.rows import NUMBERS, RANDOM, row
from run.protections.scenarios import scenario
from torch import Tensor, nn
from torch.nn import functional as F

from baechi.run.launch import schedule
from baechi.run.state import caller_state, random_draws
from baechi.run.state.caller_state import CallerState


def state_without(part: str) -> tuple[Any, str, Any]:
    """A state of the caller of which a part is not put back: the launching thread's holds."""
    original = CallerState.restored

    @contextmanager
    def restored(state: CallerState) -> Iterator[None]:
        with original(state._replace(**{part: getattr(CallerState.now(), part)})):
            yield

    return CallerState, "restored", restored


@scenario(
    row("grad mode", NUMBERS, state_without("grad")),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def without_gradients(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        a = net.a(x)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("inference mode", NUMBERS, state_without("inference")),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def inference(net: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        a = net.a(x)
    b: Tensor = net.b(x)
    net.notes.append(a.is_inference())
    return a.clone() + b


@scenario(
    row("autocast", r"BaechiError: a returned something else", state_without("autocast")),
    layers=linears("ab"),
    order="ba",
    launched="b a",
)
def autocast(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        a = net.a(x)
    b: Tensor = net.b(x)
    return a + b


class Ones(Shift):
    """Makes a tensor of the default dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.ones(8)


@scenario(
    row("weights that autocast has cast", NUMBERS, (schedule, "casts_weights", lambda _: "")),
    layers=linears("abc"),
    order="cab",
    launched="a c b",
    forced=("a",),
)
def cast_for_several(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.autocast("cpu", torch.bfloat16):
        first = F.linear(a, net.b.weight)
        second = F.linear(x * 3, net.b.weight)
    b, c = net.b(x), net.c(x)
    result: Tensor = first * second + b + c
    return result


@scenario(
    row("default dtype", r"BaechiError: a returned something else", state_without("dtype")),
    layers={"a": Ones, "b": Shift},
    order="ba",
    launched="b a",
)
def default_dtype(net: Any, x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        a = net.a(x)
    finally:
        torch.set_default_dtype(torch.float32)
    b: Tensor = net.b(x)
    return a.float() + b


def packing(net: Any) -> Any:
    """Hooks that note the shape of what autograd saves."""

    def pack(tensor: Tensor) -> Tensor:
        net.notes.append(tuple(tensor.shape))
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


@scenario(
    row(
        "hooks on saved tensors are somebody else's",
        NUMBERS,
        (caller_state, "saved_hooks_aside", lambda: nullcontext(False)),
    ),
    layers=linears("ab"),
    order="ba",
    launched="b a",
)
def waits_for_hooks(net: Any, x: Tensor) -> Tensor:
    a = net.a(torch.tanh(x))
    with packing(net):
        b: Tensor = net.b(x)
    return a + b


@scenario(
    row(
        "a transform is somebody else's",
        r"RuntimeError: vmap",
        (caller_state, "without_transforms", nullcontext),
    ),
    layers={"a": lambda: nn.Dropout(0.5), "b": Shift},
    order="ba",
    launched="b a",
)
def waits_for_a_transform(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    b: Tensor = torch.vmap(net.b)(x)
    return a + b


def drawing(how: str) -> tuple[Any, str, Any]:
    """The random state of what waits is not kept, or not gone on from, or left as it was there."""
    original = random_draws.drawing_as_if_now

    def later(draws: Any, run: Callable[[], Any], draw_at: Any) -> Callable[[], Any]:
        state = torch.get_rng_state()
        kept = original(draws, run, draw_at)
        if how == "not advanced":
            torch.set_rng_state(state)

        return run if how == "not kept" else kept

    return schedule, "drawing_as_if_now", later


def random_state_left() -> tuple[Any, str, Any]:
    """A later run leaves the generator where it stands then."""
    original = random_draws.drawing_as_if_now

    def drawing(draws: Any, run: Callable[[], Any], draw_at: Any) -> Callable[[], Any]:
        states: list[Tensor] = []

        def noting() -> Any:
            result = run()
            states.append(torch.get_rng_state())
            return result

        kept = original(draws, noting, draw_at)

        def later() -> Any:
            result = kept()
            torch.set_rng_state(states.pop())
            return result

        return later

    return schedule, "drawing_as_if_now", drawing


@scenario(
    row("the random state of then", RANDOM, drawing("not kept")),
    row("the generator goes on as if it had drawn", RANDOM, drawing("not advanced")),
    row("the generator is put back", RANDOM, random_state_left()),
    layers={"a": lambda: nn.Dropout(0.5), "b": Shift},
    order="ba",
    launched="b a",
)
def dropout(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    noisy = torch.rand(8)
    b: Tensor = net.b(x)
    return a + noisy + b + torch.rand(8)
