"""Which torch function the model's code calls, and beside which tensor it is told to put its result.

While a model is captured all tensors have one device. So where the code brings a tensor that it made on the
host to the device of another one, torch has nothing to do; on several devices it copies. The copy is made
here, too, so that it is seen:

    torch.tensor(8).to(x.device)           a copy
    torch.tensor(8, device=x.device)       the same
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from baechi.capture.watch.trace import OF_DATA, TO, Function, HostWait, Origin, Storage
from baechi.capture.watch.watched_run import Watch
from baechi.torchlib.operators.facts import drops
from baechi.torchlib.operators.functions import function_name, reads_property
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.patches import FAKE_DEVICE

LIST = "tolist"
"""A tensor with memory gives its values in one copy, which no dispatch mode sees; a fake one, one by one."""

_LIKE = "new_tensor"


class Functions(TorchFunctionMode):
    """Notes the torch function that the model's code calls. Functions called inside it are not noted.

    Args:
        watch: the watch.
    """

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a function, and call it."""
        watch, kwargs = self.watch, kwargs or {}
        if reads_property(func) or watch.function is not None or watch.trace.backward is not None:
            result = func(*args, **kwargs)
            return _answered(watch, args[0], result) if isinstance(result, torch.device) else result
        name = function_name(func) or type(func).__name__
        reads = watch.uses(args, kwargs)
        # a factory such as `arange(n, device=x.device)` runs where `x` lies, also if `n` is a tensor
        beside = None if reads and name == TO else watch.devices.owner(kwargs.get("device"))
        bound = watch.in_region() or drops(name, args, kwargs)
        watch.function = Function(name, reads, bound=bound, beside=beside)
        try:
            if (
                name == TO
                and self._is_made_of_nothing(args[0])
                and _is_on_a_device(self._target(args, kwargs))
            ):
                args = (self._brought(args[0]), *args[1:])
            result = func(*args, **kwargs)
            near = watch.storage_of(args[0]) if name == _LIKE else beside
            if name in OF_DATA and self._is_made_of_nothing(result) and _is_on_a_device(near):
                return self._brought(result)
            return result
        finally:
            watch.function = None
            if name == LIST and watch.call is not None:
                watch.trace.events.append(HostWait(reads, kernels=1))

    def _brought(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        self.watch.storage_of(copy).origin = Origin.WEIGHTS
        return copy

    def _target(self, args: Any, kwargs: dict[str, Any]) -> Storage | None:
        """The memory of the tensor to whose device `to` brings one."""
        told = kwargs.get("other", args[1] if len(args) > 1 else kwargs.get("device"))
        if isinstance(told, torch.Tensor):
            return self.watch.storage_of(told)
        return self.watch.devices.owner(told)

    def _is_made_of_nothing(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.numel() > 0  # `torch.tensor([])` has nothing to copy
            and self.watch.storage_of(tensor).origin is Origin.NOTHING
        )


def _is_on_a_device(storage: Storage | None) -> bool:
    """Whether memory lies on a device for sure; what is made of inputs alone may lie on the host."""
    return storage is not None and storage.origin is Origin.WEIGHTS


def _answered(watch: Watch, tensor: torch.Tensor, device: torch.device) -> torch.device:
    """The device of a tensor, as an object that `watch.devices` recognizes if it is passed on.

    Torch's own code for fake tensors asks, too, for a view that is just being made: it has no record yet.
    """
    if watch.function is not None or watch.call is None or watch.trace.backward is not None:
        return device
    storage = watch.record_of(tensor)
    return device if storage is None else watch.devices.answer(device, storage)


@contextmanager
def device_reads(watch: Watch) -> Iterator[None]:
    """Note reads of a fake tensor's device, a Python property that no mode sees."""
    original: property = FAKE_DEVICE.now()

    def device(self: FakeTensor) -> torch.device:
        answer = original.__get__(self)
        return answer if self.fake_mode.in_kernel_invocation else _answered(watch, self, answer)

    with FAKE_DEVICE.replaced(property(device, original.fset)):
        yield
