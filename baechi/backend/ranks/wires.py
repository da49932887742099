"""What ranks say to each other, all of it by `torch.distributed`: tensors in order, and the first error.

    forward    a group for activations, weights and random states, from rank to rank
    backward   one for gradients, so that none waits behind an activation of the same pair
    together   one for what all ranks do: agree, share the loss, add up norms

With replicas a rank has these with the ranks of its replica, which are numbered inside of it, and two more:

    across     of the ranks with the same part of the model: mean of gradients
    all        of all processes: what they were given, the plan, checkpoints

There are no tags: of an ordered pair, both ends issue the same transfers of a group in the same order.
"""

import gc
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from baechi.errors import BaechiError, RankError, said_by
from baechi.torchlib.private.groups import default_store

LIMIT = "BAECHI_RANKS_LIMIT_S"
"""The environment variable with the seconds after which a rank that waits for another one gives up."""

_LIMIT_S = 600.0
_MOST_SENDS = 4
"""So many sends to a rank are under way at most: a sent tensor keeps its memory until then."""

_ERROR = "baechi/first_error"
_NEWS_S = 3.0
"""How long a rank that lost another one waits to be told why."""


def limit_s() -> float:
    """How long a rank waits for another one, in seconds."""
    said = os.environ.get(LIMIT, "")
    try:
        found = float(said or _LIMIT_S)
    except ValueError:
        found = 0.0
    if found <= 0:
        raise ValueError(f"{LIMIT} is {said!r}: seconds that a rank waits for another one, above 0")
    return found


class Wires:
    """The ways between this process and the others, on top of torch's default group.

    Args:
        replicas: into how many groups of equal size the processes are divided.

    Attributes:
        rank: which process of its replica this is.
        size: how many a replica has.
        replica: which replica this is.
        replicas: how many there are.
    """

    def __init__(self, replicas: int = 1) -> None:
        self.number, processes = distributed.get_rank(), distributed.get_world_size()
        self.replicas, self.size = replicas, processes // replicas
        self.replica, self.rank = divmod(self.number, self.size)
        self._device = "cpu"
        limit = timedelta(seconds=limit_s())
        inside = [range(start, start + self.size) for start in range(0, processes, self.size)]
        self._members = inside[self.replica]
        self._groups = [_group(inside, self.number, limit) for _ in range(3)]
        if replicas > 1:
            across = [range(place, processes, self.size) for place in range(self.size)]
            self._groups += [_group(each, self.number, limit) for each in (across, [range(processes)])]
        self._sends: defaultdict[int, deque[tuple[Any, torch.Tensor]]] = defaultdict(deque)
        self._broken = ""

    def open(self, device: torch.device) -> None:
        """Send something on each way once: where ways open late, they do so now, under the time limit.

        Args:
            device: of the tensors that travel.
        """
        self._device = str(device)
        for backward in (False, True):
            for source in range(self.size):
                for target in range(self.size):
                    one = torch.zeros(1, device=device)
                    if source != target and self.rank == source:
                        self.send(one, target, backward=backward)
                        self.wait_for_sends()
                    elif source != target and self.rank == target:
                        self.wait(self.receive(one, source, backward=backward), source)
        for group in self._groups[3:]:
            with self._watched(None):
                distributed.all_reduce(torch.zeros(1, device=device), group=group)

    @property
    def across(self) -> Any:
        """Torch's group of the ranks that have the same part of the model; None without replicas."""
        return self._groups[3] if self.replicas > 1 else None

    @property
    def name(self) -> str:
        """What errors call this rank: its number among all processes."""
        return f"rank {self.number}"

    def number_of(self, rank: int) -> int:
        """The number of a rank of this replica among all processes."""
        return self._members[rank]

    # --- from rank to rank

    def send(self, flat: torch.Tensor, target: int, *, backward: bool) -> None:
        """Send a tensor without gaps; it keeps its memory until it has been read."""
        waiting = self._sends[target]
        while len(waiting) >= _MOST_SENDS:
            self.wait(waiting.popleft()[0], target)
        with self._watched(target):
            waiting.append(
                (distributed.isend(flat, self._members[target], group=self._groups[backward]), flat)
            )

    def receive(self, flat: torch.Tensor, source: int, *, backward: bool) -> Any:
        """Begin to receive into a tensor without gaps; returns what `wait` takes."""
        with self._watched(source):
            return distributed.irecv(flat, self._members[source], group=self._groups[backward])

    def wait(self, work: Any, other: int) -> None:
        """Wait until a transfer with another rank is over."""
        with self._watched(other):
            work.wait()

    def wait_for_sends(self) -> None:
        """Wait until all that was sent has been read."""
        for target, waiting in self._sends.items():
            while waiting:
                self.wait(waiting.popleft()[0], target)

    # --- all of them

    def share(self, flat: torch.Tensor, source: int) -> None:
        """Give all ranks what one has, in place."""
        with self._watched(source):
            distributed.broadcast(flat, self._members[source], group=self._groups[2])

    def add_up(self, values: torch.Tensor) -> None:
        """Add up what all ranks have, in place."""
        with self._watched(None):
            distributed.all_reduce(values, group=self._groups[2])

    def agree_on(self, number: int, what: str) -> None:
        """Raise on all ranks if they have other numbers of something."""
        found = [one for (one,) in self.gather([number])]
        if len(set(found)) > 1:
            raise RankError(f"ranks have other numbers of {what}: {found}, by rank", on_all=True)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """By rank, the numbers that it gave."""
        mine = torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self._watched(None):
            distributed.all_gather(found, mine, group=self._groups[2])
        return [one.tolist() for one in found]

    def gather_objects(self, mine: Any) -> list[Any]:
        """By rank of this replica, what it gave."""
        return self._gathered(mine, self._groups[2], self.size)

    # --- all processes: also of other replicas

    def gather_all(self, mine: Any) -> list[Any]:
        """By process, what it gave."""
        return self._gathered(mine, self._groups[-1], self.size * self.replicas)

    def _gathered(self, mine: Any, group: Any, size: int) -> list[Any]:
        found: list[Any] = [None] * size
        with self._watched(None):
            distributed.all_gather_object(found, mine, group=group)
        return found

    def from_first(self, mine: Any) -> Any:
        """What the first process gave, on all of them."""
        found = [mine]
        with self._watched(None):
            distributed.broadcast_object_list(found, 0, group=self._groups[-1])
        return found[0]

    def all_do(self, act: Callable[[Any], None]) -> None:
        """Let code of torch's act on the group of all processes."""
        self._refuse_if_broken()
        with self._watched(None):
            act(self._groups[-1])

    # --- replicas

    def begin_sum(self, flat: torch.Tensor) -> Any:
        """Begin to add up what the ranks with the same part of the model have, in place."""
        with self._watched(None):
            return distributed.all_reduce(flat, group=self.across, async_op=True)

    def wait_for_sum(self, work: Any) -> None:
        """Wait until it is added up."""
        with self._watched(None):
            work.wait()

    def from_first_replica(self, flat: torch.Tensor) -> None:
        """Give the ranks with the same part of the model what the first of them has, in place."""
        with self._watched(None):
            distributed.broadcast(flat, self.rank, group=self.across)

    # --- errors

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Within this context, in which nothing is sent, an error of one is raised on all.

        They stay together.
        """
        self._refuse_if_broken()
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # told, and raised again
            error = raised
        told = self.gather_all(None if error is None else f"{type(error).__name__}: {said_by(error)}")
        if error is not None:
            raise error
        for rank, said in enumerate(told):
            if said is not None:
                raise RankError(f"rank {rank}: {said}", on_all=True)

    def _refuse_if_broken(self) -> None:
        if self._broken:
            raise RankError(f"the ranks are no longer together: start them again. {self._broken}")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Within this context an error is told to the other ranks, which end with it."""
        self._refuse_if_broken()
        try:
            yield
        except Exception as error:  # told, and raised again
            if not (isinstance(error, RankError) and error.on_all):
                self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks of an error, the first one that happened, and let go of them."""
        if not self._broken:
            said = error.args[0] if isinstance(error, BaechiError) and error.args else said_by(error)
            self._broken = f"{self.name}: {type(error).__name__}: {said}"
            default_store().compare_set(_ERROR, "", self._broken)
            self._sends.clear()
            while self._groups:  # connections close with the last reference, and then the others notice
                distributed.destroy_process_group(self._groups.pop())
            gc.collect()

    @contextmanager
    def _watched(self, other: int | None) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo's and NCCL's own, and a limit that is over
            if isinstance(error, BaechiError):
                raise
            raise self._lost(other, error) from error

    def _lost(self, other: int | None, error: RuntimeError) -> RankError:
        store, until = default_store(), time.monotonic() + _NEWS_S
        while time.monotonic() < until:
            if store.check([_ERROR]):
                return RankError(f"the step was ended by {store.get(_ERROR).decode()}")
            time.sleep(0.05)
        who = "another rank" if other is None else f"rank {self._members[other]}"
        lines = said_by(error).strip().splitlines()
        return RankError(
            f"{self.name} waited for {who}, which was lost, or took more than {limit_s():g} seconds "
            f"({LIMIT}); torch says: {lines[0] if lines else type(error).__name__}"
        )


def _group(each: Sequence[Sequence[int]], own: int, limit: timedelta) -> Any:
    """The group that this process is in, of several; all processes make all of them, in one order."""
    made = [distributed.new_group(list(members), timeout=limit) for members in each]
    return made[[own in members for members in each].index(True)]
