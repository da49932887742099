"""What the runtime asks of devices; it speaks to this only and cannot tell one kind from another."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from baechi.backend.flag import Flag
from baechi.records.timeline import Timeline


class AbstractBackend(ABC):
    """The devices of a cluster: where tensors lie, streams of work, and who waits for what.

    A place is a text: a device's name, or whatever else tensors lie on, such as the host. Streams
    and events are the backend's own; the host has none, and None stands for them.
    """

    names: Sequence[str]
    """The names of the cluster's devices."""

    host: str
    """The host's place."""

    def __init__(self) -> None:
        self.outstanding: dict[str, dict[Any, Any]] = {}
        """By place and stream, the event after the last transfer that left: nothing waited for it yet."""

    # --- places

    @abstractmethod
    def place_of(self, tensor: torch.Tensor) -> str:
        """Where a tensor lies.

        Args:
            tensor: any tensor.

        Returns:
            A device's name, or another place.
        """

    @abstractmethod
    def torch_device(self, place: str) -> torch.device | None:
        """A place as torch's functions take it; None if it makes no difference to them.

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
    def draw_at(self, device: torch.device) -> None:
        """What is drawn on a device next goes on where the numbers of the others ended.

        Args:
            device: as torch knows it.
        """

    @abstractmethod
    def draw_everywhere(self) -> None:
        """In a step: all devices would draw the same next."""

    @abstractmethod
    def drawing_again(self) -> AbstractContextManager[None]:
        """While code runs again, with the states that the generators of all devices had before."""

    @abstractmethod
    def is_unplaced(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor belongs nowhere yet: made in the step, of nothing that has a place.

        Args:
            tensor: any tensor.
        """

    @abstractmethod
    def claim(self, tensor: torch.Tensor, place: str) -> bool:
        """Let a tensor that belongs nowhere yet belong to its first user.

        Args:
            tensor: any tensor.
            place: a device's name.

        Returns:
            Whether it now lies there; False if it has to be copied.
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
        """Memory for weights that have none, with nothing in it; what shares storage goes on sharing it.

        Args:
            tensors: parameters and buffers on `meta`, with all that share storage with them.
            place: a device's name.

        Returns:
            For each tensor, one like it that lies at the place.
        """

    @property
    @abstractmethod
    def session(self) -> object:
        """Who counts memory now; when it is another one than before, `count` tells it what is there."""

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
            stream: who uses it.
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
    def idle_s(self) -> float:
        """Wait until nothing runs on the devices.

        Returns:
            What time it is then, in seconds.
        """

    # --- threads

    @abstractmethod
    def flag(self) -> Flag:
        """A new flag that threads wait for."""

    @abstractmethod
    def spawn(self, function: Callable[[], None], position: int) -> Callable[[], None]:
        """Run a function in a thread of its own, which ends with it.

        Args:
            function: what to run; it raises nothing.
            position: its place in the plan, for a backend that lets one thread run at a time.

        Returns:
            Waits until the thread is gone; to be called when the function is over, or about to be.
        """

    # --- steps

    @abstractmethod
    def step(self) -> AbstractContextManager[Callable[[], Timeline] | None]:
        """While a model runs; what it gives measures the step, and its backward, when asked later.

        Returns:
            A context manager; None comes from it where nothing is measured.
        """

    @abstractmethod
    def at(
        self, place: str, layer: str | None = None
    ) -> AbstractContextManager[Callable[[Any], None] | None]:
        """What this thread launches inside runs at a place, and belongs to a layer.

        Args:
            place: a device's name, or another place.
            layer: its name, with the number of its call; empty for glue. None leaves open whose it is.

        Returns:
            A context manager; what comes from it, if anything, is to be told inside what the layer
            returned.
        """

    @abstractmethod
    def enter_layer(self, layer: str) -> str:
        """What this thread launches from now on belongs to a layer, in reports and in errors.

        Args:
            layer: its name, with the number of its call; empty for none.

        Returns:
            The layer that it was in.
        """
