"""Weights over ranks: each has its own; of the others the objects, without values, for optimizers and ties.

model.parameters()     w0      w1            the same objects, names and groups on every rank
rank 0                 values  elsewhere     an optimizer's step leaves those elsewhere alone
rank 1                 else.   values        `clip_grad_norm_` adds up the norms of all
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from baechi.backend.ranks.devices import RankDevices
from baechi.errors import RankError
from baechi.run.ranks.first_replica import from_first_replica
from baechi.torchlib.elsewhere import ElsewhereTensor, leave_elsewhere
from baechi.torchlib.private.groups import TOTAL_NORM, TOTAL_NORM_BY_NAME, grouped_by_kind, norms_of
from baechi.torchlib.private.patches import OPTIMIZER_SAVES
from baechi.torchlib.tensors.storage import storage_object

_backends: "WeakKeyDictionary[nn.Module, RankDevices]" = WeakKeyDictionary()


def keep_own(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    planned: Mapping[str, str],
    backend: RankDevices,
    optimizer: torch.optim.Optimizer | None,
) -> dict[str, torch.Tensor]:
    """Let weights of other ranks have no values here, with their state; returns those that stay."""
    place_of: dict[int, str] = {}
    for name, weight in weights.items():  # weights that share memory lie together, where the first one does
        place_of.setdefault(id(storage_object(weight)), planned[name])
    places = {name: place_of[id(storage_object(weight))] for name, weight in weights.items()}
    device = backend.named_device(backend.own)
    for name, weight in weights.items():
        if places[name] != backend.own and not isinstance(weight, ElsewhereTensor):
            if optimizer is not None:
                optimizer.state.pop(weight, None)
            weight.grad = None
            leave_elsewhere(weight, places[name], name, device)
    own = {id(weight): weight for weight in weights.values() if not isinstance(weight, ElsewhereTensor)}
    from_first_replica(backend, [weight for weight in own.values() if not weight.is_meta])
    _backends[model] = backend
    _teach_torch()
    return {name: weight for name, weight in weights.items() if not isinstance(weight, ElsewhereTensor)}


@cache
def _teach_torch() -> None:
    aside: list[tuple[torch.Tensor, torch.Tensor]] = []

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        weights = [weight for _, weight in _elsewhere(optimizer)]
        if weights and (kwargs.get("closure") or args[1:2] not in ((), (None,))):
            raise RankError(
                f"{type(optimizer).__name__}.step(closure) would run the model inside of the step, and some "
                "weights lie in other processes: call the model and backward() first, then step()"
            )
        for weight in weights:
            if weight.grad is not None:
                aside.append((weight, weight.grad))
                weight.grad = None

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for weight, grad in aside:
            weight.grad = grad
        aside.clear()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    OPTIMIZER_SAVES.put(state_dict)
    TOTAL_NORM.put(total_norm)
    TOTAL_NORM_BY_NAME.put(total_norm)


def _elsewhere(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, ElsewhereTensor]]:
    """The weights of other processes, with their numbers in the optimizer's state dict."""
    weights = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, weight in enumerate(weights):
        if isinstance(weight, ElsewhereTensor):
            yield number, weight


def state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Torch's state dict; states that lie elsewhere are noted in it, so that it is not written to a file."""
    packed: dict[str, Any] = OPTIMIZER_SAVES.original(optimizer)
    missing = {
        number: ElsewhereTensor(weight, weight.place, f"the state of {weight.called}", weight.device)
        for number, weight in (_elsewhere(optimizer) if packed["state"] else ())
    }
    if not missing:
        return packed
    here = {number: one for number, one in packed["state"].items() if number not in missing}
    return packed | {"state": here, "elsewhere": missing}


@torch.no_grad()
def total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    """Torch's norm of gradients, of which some lie on other ranks: the norm of each comes from its rank."""
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    backend = _backend_of(given)
    if backend is None:
        found: torch.Tensor = TOTAL_NORM.original(given, norm_type, error_if_nonfinite, foreach)
        return found
    kind = float(norm_type)
    backend.wires.agree_on(len(given), "gradients whose norm is asked for")
    norms = []
    for group in grouped_by_kind(given):
        own = [one for one in group if not isinstance(one, ElsewhereTensor)]
        here = iter(norms_of(own, kind, foreach))
        zero = torch.zeros((), dtype=_kind_of_norm(group[0].dtype), device=group[0].device)
        row = torch.stack([zero if isinstance(one, ElsewhereTensor) else next(here) for one in group])
        backend.wires.add_up(row)
        norms += list(row.unbind())
    total: torch.Tensor = torch.linalg.vector_norm(
        torch.stack([norm.to(given[0].device) for norm in norms]), kind
    )
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(
            f"The total norm of order {kind} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return total


def _backend_of(given: Sequence[torch.Tensor]) -> RankDevices | None:
    """The devices of the model over ranks whose gradients these are: all ranks ask, with lists as long."""
    asked, last = {id(one) for one in given}, None
    for model, backend in _backends.items():
        if any(id(weight.grad) in asked for weight in model.parameters()):
            return backend
        last = backend
    return last if any(isinstance(one, ElsewhereTensor) for one in given) else None


def _kind_of_norm(dtype: torch.dtype) -> torch.dtype:
    return torch.empty((), dtype=dtype).abs().dtype
