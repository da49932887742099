"""What the runtime asks of devices; it speaks to this only and cannot tell one kind from another."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from baechi.backend.abstract_lanes import AbstractLanes
from baechi.backend.host_threads import AbstractHostThreads
from baechi.records.device import HostWork
from baechi.records.timeline import Timeline


class AbstractBackend(AbstractHostThreads, AbstractLanes):
    """The devices of a cluster: where tensors lie, streams of work, and waits between them.

    A place is a string: a device's name, or another location of tensors, such as the host. Streams
    and events are the backend's own; the host has none, and None stands for them.
    """

    names: Sequence[str]
    """The names of the cluster's devices."""

    host: str
    """The host's place."""

    sends_rows = False
    """Whether what goes to another device goes as a row of bytes, with the strides that a graph says."""

    def __init__(self) -> None:
        self.outstanding: dict[str, dict[Any, list[Any]]] = {}
        """By place and stream, the sends that no stream has waited for yet; see `sends`."""

    # --- places

    @abstractmethod
    def place_of(self, tensor: torch.Tensor) -> str:
        """Where a tensor lies: a device's name, or another place.

        Args:
            tensor: any tensor.
        """

    @abstractmethod
    def finder(self, place: str) -> Callable[[torch.Tensor], bool]:
        """A function that says whether a tensor lies at a place, as `place_of` does, but sooner.

        Args:
            place: a device's name.
        """

    @abstractmethod
    def torch_device(self, place: str) -> torch.device | None:
        """A place as torch's functions take it; None if it makes no difference to them.

        Args:
            place: a device's name.
        """

    @abstractmethod
    def named_device(self, place: str) -> torch.device:
        """A place as code is told it that may run inside of an emulation, or outside.

        Args:
            place: a device's name.
        """

    @abstractmethod
    def kernel_device(self, place: str) -> torch.device | None:
        """The device whose kernels run at a place, where that is torch's own to tell; else None.

        Args:
            place: a device's name.
        """

    @abstractmethod
    def generators(self) -> list[torch.device]:
        """The devices that have a random generator of their own, beside the host's."""

    @abstractmethod
    def draw_everywhere(self) -> None:
        """In a step: give the generators of all devices the state of the one that drew last."""

    @abstractmethod
    def drawing_again(self) -> AbstractContextManager[None]:
        """While code runs again (checkpointing) with the earlier states of all generators."""

    @abstractmethod
    def running_again(self) -> AbstractContextManager[None]:
        """While code runs again in backward, for gradients that other devices' threads gave before."""

    @abstractmethod
    def is_unplaced(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has no place yet: made in the step from no tensor that has one (a mask).

        Args:
            tensor: any tensor.
        """

    @abstractmethod
    def claim(self, tensor: torch.Tensor, place: str) -> bool:
        """Give a tensor without a place to the device of its first user.

        Args:
            tensor: any tensor.
            place: a device's name.

        Returns:
            Whether it now lies there; False if it has to be copied.
        """

    def known_to_all(self, scalar: torch.Tensor) -> torch.Tensor | None:
        """A scalar that every rank has without a transfer of the step, as kernels take it; None if none does.

        Args:
            scalar: the gradient of the loss.
        """
        return None

    @property
    def replicas(self) -> int:
        """How many replicas of the model there are, each on devices of its own."""
        return 1

    @property
    def homes(self) -> Sequence[str]:
        """The devices whose tensors this process has."""
        return self.names

    def begin_sum(self, flat: torch.Tensor, place: str) -> Any:
        """Begin to add up, in place, what the devices with the same part of the model have, one a replica.

        Args:
            flat: a tensor without gaps.
            place: where it lies.
        """
        raise NotImplementedError

    def end_sum(self, begun: Any, place: str) -> None:
        """Let work that is issued there from now on use the sum.

        Args:
            begun: what `begin_sum` returned.
            place: where the tensor lies.
        """
        raise NotImplementedError

    def leave(self, tensor: torch.Tensor) -> None:
        """What this thread computes next without the runtime comes after what made a tensor.

        Only a part of a GPU computes on another stream than the code around it.
        """

    @abstractmethod
    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        """Move weights to a place; those that share storage go on sharing it.

        Args:
            tensors: parameters and buffers with all that share storage with them.
            place: a device's name, or the host.

        Returns:
            For each tensor, the data it shall hold from now on.
        """

    @abstractmethod
    def room_for(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        """Allocate uninitialized memory for weights on `meta`; those that share storage go on sharing it.

        Args:
            tensors: parameters and buffers on `meta`, with all that share storage with them.
            place: a device's name.

        Returns:
            For each tensor, one like it that lies at the place.
        """

    @property
    @abstractmethod
    def session(self) -> object:
        """The object that counts memory now. If it changed, call `count` for the tensors already there."""

    @abstractmethod
    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that lie on devices already.

        Args:
            tensors: weights and their gradients.
        """

    # --- streams

    @abstractmethod
    def compute_stream(self, place: str) -> Any:
        """The stream on which this thread computes at a place.

        Args:
            place: a device's name, or another place.
        """

    @abstractmethod
    def transfer_streams(self, source: str, target: str) -> tuple[Any, Any]:
        """The streams on which an ordered pair of places sends (tx) and receives (rx).

        Args:
            source: where tensors come from.
            target: where they go.
        """

    @abstractmethod
    def record(self, stream: Any) -> Any:
        """An event that happens when all that is on a stream now is over.

        Args:
            stream: the stream.
        """

    @abstractmethod
    def wait(self, stream: Any, event: Any) -> None:
        """Let what is put on a stream from now on come after an event.

        Args:
            stream: the stream; None for the host, which waits itself.
            event: the event; None if there is nothing to wait for.
        """

    @abstractmethod
    def reads_later(self, tensor: torch.Tensor) -> bool:
        """Whether a copy to a device may still read a tensor of the host when `copy` has returned.

        Args:
            tensor: any tensor; one in pinned memory is read by the device itself.
        """

    @abstractmethod
    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        """Tell the allocator that a stream uses a tensor, so that its memory is not reused too early.

        Args:
            tensor: a tensor that another stream allocated.
            stream: the stream that uses it.
        """

    @abstractmethod
    def copy(
        self, tensor: torch.Tensor, place: str, streams: tuple[Any, Any], *, gradient: bool = False
    ) -> torch.Tensor:
        """Copy a tensor to a place, outside autograd, on the streams of both ends.

        Args:
            tensor: any tensor.
            place: a device's name, or a place that `place_of` once returned. A copy to the host is
                complete when this returns.
            streams: on the tensor's side, and on the other, where the copy is allocated.
            gradient: whether autograd made it, which belongs to no turn of a step.

        Returns:
            A new storage with the same layout.
        """

    @abstractmethod
    def copy_s(self, tensor: torch.Tensor, place: str) -> float:
        """Seconds of a copy to a place, alone, on the link; without the host's time to ask for it.

        Args:
            tensor: any tensor.
            place: a device's name, or the host.
        """

    @abstractmethod
    def idle_s(self) -> float:
        """Wait until nothing runs on the devices.

        Returns:
            The clock's time then, in seconds.
        """

    @abstractmethod
    def spend(self, what: HostWork, place: str, times: int = 1) -> None:
        """Charge the calling thread's clock with the runtime's own work, where clocks are logical.

        Args:
            what: the work; see `HostCosts`.
            place: the device that it is for, whose thread does it in backward.
            times: how often.
        """

    # --- steps

    @abstractmethod
    def step(self) -> AbstractContextManager[Callable[[], Timeline] | None]:
        """Enclose the run of a model, and measure the step with its backward.

        Returns:
            A context manager. It yields a function that returns the timeline, or None without measuring.
        """

    @abstractmethod
    def at(
        self, place: str, layer: str | None = None
    ) -> AbstractContextManager[Callable[[Any], None] | None]:
        """Run what this thread launches inside at a place, and attribute it to a layer.

        Args:
            place: a device's name, or another place.
            layer: its name, with the number of its call; empty for glue; None if unknown.

        Returns:
            A context manager. If it yields a function, call that inside with the layer's result.
        """

    @abstractmethod
    def is_bare(self, *places: str) -> bool:
        """Whether `at` and `spend` do nothing at some places, in the step that this thread is in.

        Args:
            *places: devices' names, or other places.
        """

    @abstractmethod
    def enter_layer(self, layer: str) -> str:
        """Attribute what this thread launches from now on to a layer, in reports and in errors.

        Args:
            layer: its name, with the number of its call; empty for none.

        Returns:
            The layer that it was in.
        """
