"""While a cluster is emulated, tensors say where they lie: `x.device` is `cpu:1`, and `x.to` moves.

The devices of an emulated cluster answer as torch devices `cpu:k`; the host as plain `cpu`. Torch
keeps such an index in its arguments (`zeros(3, device=x.device)`) and drops it in its results. It
computes `to`, `cpu`, `tolist`, `numpy` and `torch.tensor(device=)` without a hook for
us. So these few are replaced while a cluster is emulated. (A function mode could answer as well, but
torch's fused kernels round differently where one is on.)
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import handle_torch_function, has_torch_function_unary

from baechi.backend.transfer import transfer
from baechi.backend.virtual import current
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.backend.virtual.torch_names import torch_devices
from baechi.records.cluster import HOST
from baechi.torchlib.fakes.kernels import refuse_valueless
from baechi.torchlib.host_work import work_of_call
from baechi.torchlib.modules.optimizer_state import state_beside
from baechi.torchlib.private.compiler import note_functions_anew
from baechi.torchlib.private.modes import DeviceContext, function_modes, without_dispatch_modes
from baechi.torchlib.private.patches import (
    FACTORIES,
    MODULE_CALL,
    STORAGE_CLONE,
    TENSOR_DEVICE,
    TENSOR_METHODS,
    THREAD_RUN,
    ZERO_GRAD,
)
from baechi.torchlib.private.tensors import TensorBase
from baechi.torchlib.shards.tensor import plain_parts
from baechi.torchlib.tensors.storage import mark_of

_CALLS = (MODULE_CALL, *ZERO_GRAD)


class Identity:
    """What is replaced in torch while a cluster is emulated.

    Args:
        emulator: the cluster.
    """

    def __init__(self, emulator: Emulator) -> None:
        names = emulator.cluster.names
        self._names = names
        self._emulator = emulator
        self._backend = VirtualDevices(names)
        self._torch_devices = torch_devices(names)
        self._places = {device: names.index(name) for name, device in self._torch_devices.items()}
        self._optimizers: Any = None

    def install(self) -> None:
        """Replace them."""
        TENSOR_DEVICE.put(_seen_property(self._device))
        for method in TENSOR_METHODS:
            method.put(_method(method.name, getattr(self, f"_{method.name}")))
        STORAGE_CLONE.put(_clone)
        MODULE_CALL.put(self._taking(MODULE_CALL.now(), self._called))
        for zero in ZERO_GRAD:
            zero.put(self._taking(zero.now(), self._zeroed))
        THREAD_RUN.put(_watched_run)
        self._optimizers = register_optimizer_step_pre_hook(self._adopt_state)
        for factory in FACTORIES:
            factory.put(self._factory(factory.now()))

    def remove(self) -> None:
        """Put torch's own back."""
        for place in (*_CALLS, TENSOR_DEVICE, *TENSOR_METHODS, STORAGE_CLONE, THREAD_RUN, *FACTORIES):
            place.take_back()
        note_functions_anew([factory.original for factory in FACTORIES if factory.exists])
        if self._optimizers is not None:
            self._optimizers.remove()

    def place_of(self, device: torch.device) -> int:
        """The place in the cluster of a torch device."""
        if device not in self._places:
            known = ", ".join(str(known) for known in self._places)
            raise RuntimeError(f"{device} is no device of the emulated cluster: it has {known}")
        return self._places[device]

    def lies_on_a_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on a device of the cluster."""
        return self._place(tensor) is not None

    def _place(self, tensor: torch.Tensor) -> str | None:
        """The device a tensor lies on; None on the host, and where nothing is emulated."""
        if current.at_work() is not self._emulator:
            return None
        mark = mark_of(tensor)
        return mark.place if mark is not None and mark.place in self._torch_devices else None

    def _device(self, tensor: torch.Tensor) -> torch.device:
        place = self._place(tensor)
        device: torch.device = TensorBase.device.__get__(tensor)
        return device if place is None else self._torch_devices[place]

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if current.at_work() is not self._emulator or tensor.is_meta:
            return TensorBase.to(tensor, *args, **kwargs)
        target, args, kwargs = self._take_device(args, kwargs)
        place = self._place(tensor) or HOST
        if target is None or target == place:
            return TensorBase.to(tensor, *args, **kwargs) if args or kwargs else tensor
        moved = transfer(tensor, self._backend, target, beside=False)
        kwargs.pop("copy", None)
        return TensorBase.to(moved, *args, **kwargs) if args or kwargs else moved

    def _take_device(self, args: Any, kwargs: Any) -> tuple[str | None, Any, Any]:
        """The device among the arguments of `to`, and the other arguments."""
        kwargs = dict(kwargs)
        other = kwargs.pop("other", args[0] if args and isinstance(args[0], torch.Tensor) else None)
        if other is not None:
            return self._place(other) or HOST, (other.dtype, *args[1:]), kwargs
        device = kwargs.pop("device", None)
        if args and (args[0] is None or isinstance(args[0], (str, torch.device))):
            rest = dict(zip(("dtype", "non_blocking", "copy"), args[1:], strict=False))
            device, args, kwargs = args[0], (), {**rest, **kwargs}
        if kwargs.get("dtype", True) is None:
            del kwargs["dtype"]
        if device is None:
            return None, args, kwargs
        device = torch.device(device)
        if device.type != "cpu":
            return None, (device, *args), kwargs
        return HOST if device.index is None else self._names[self.place_of(device)], args, kwargs

    def _cpu(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return tensor.to("cpu") if self._place(tensor) else TensorBase.cpu(tensor, *args, **kwargs)

    def _tolist(self, tensor: torch.Tensor) -> Any:
        if self._emulator.shapes is not None:
            refuse_valueless(tensor, "tolist")
        return TensorBase.tolist(tensor.detach().cpu())

    def _numpy(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        place = self._place(tensor)
        if place is not None:
            raise TypeError(
                f"can't convert {place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
                "to host memory first."
            )
        if self._emulator.shapes is not None:
            refuse_valueless(tensor, "numpy")
        return TensorBase.numpy(tensor, *args, **kwargs)

    def _new_tensor(self, tensor: torch.Tensor, data: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("device", self._device(tensor))
        kwargs.setdefault("dtype", tensor.dtype)
        return torch.tensor(data, **kwargs)

    def _taking(self, function: Callable[..., Any], take: Callable[[Any], None]) -> Callable[..., Any]:
        """A method of torch that takes time of the host, too, where this cluster is at work."""

        @functools.wraps(function)
        def called(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if current.at_work() is self._emulator:
                take(owner)
            return function(owner, *args, **kwargs)

        return called

    def _called(self, module: nn.Module) -> None:
        self._emulator.take(work_of_call(module))

    def _zeroed(self, owner: nn.Module | torch.optim.Optimizer) -> None:
        if isinstance(owner, nn.Module):
            tensors = len(list(owner.parameters()))
        else:
            tensors = sum([len(group["params"]) for group in owner.param_groups])
        self._emulator.take("zeroed_tensor", tensors)

    def _adopt_state(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """State and gradients from before lie where their weights lie."""
        if current.at_work() is not self._emulator:
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._emulator.take("updated_tensor")
                beside = state_beside(optimizer, weight)
                beside += [weight.grad] if weight.grad is not None else []
                own = plain_parts(weight)
                others = [shards for shards in map(plain_parts, beside) if len(shards) == len(own)]
                for number, shard in enumerate(own):
                    self._adopt(shard, [shards[number] for shards in others])

    def _adopt(self, weight: torch.Tensor, beside: Sequence[torch.Tensor]) -> None:
        place = self._place(weight)
        for tensor in beside if place is not None else ():
            if mark_of(tensor) is None:
                self._backend.move_weights([tensor], str(place))

    def _factory(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
            target = _default_device() if device is None else torch.device(device)
            if target is None or target.index is None or current.at_work() is not self._emulator:
                return function(*args, device=device, **kwargs)
            made = function(*args, device="cpu", **kwargs)
            if not made.numel():  # as caches begin with: there is nothing to send
                return torch.empty_like(made, device=target, requires_grad=made.requires_grad)
            return made.detach().to(target).requires_grad_(made.requires_grad)

        return make


def _default_device() -> torch.device | None:
    """The device of the innermost `with torch.device(...)`."""
    contexts = [mode for mode in function_modes() if isinstance(mode, DeviceContext)]
    device: torch.device | None = contexts[-1].device if contexts else None
    return device


def _clone(storage: Any) -> Any:
    """A storage's copy lies where the storage lies; that is how torch deep-copies tensors."""
    with without_dispatch_modes():
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        if mark_of(whole) is None:
            return STORAGE_CLONE.original(storage)
    return whole.clone().untyped_storage()


def _watched_run(thread: threading.Thread) -> None:
    """Modes belong to threads: one that starts while a cluster is emulated is watched, too."""
    with current.entered():
        THREAD_RUN.original(thread)


def _seen_property(read: Callable[[torch.Tensor], torch.device]) -> property:
    """A property of tensors whose reads modes and subclasses see, as they see those of torch's own."""

    def get(tensor: torch.Tensor) -> Any:
        if has_torch_function_unary(tensor):
            return handle_torch_function(made.__get__, (tensor,), tensor)
        return read(tensor)

    made = property(get)
    return made


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method of ours as a method of tensors, which modes and subclasses see as torch's own."""

    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if has_torch_function_unary(tensor):
            return handle_torch_function(method, (tensor,), tensor, *args, **kwargs)
        return function(tensor, *args, **kwargs)

    method.__name__ = name
    return method
