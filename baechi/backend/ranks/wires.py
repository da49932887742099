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
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch import distributed

from baechi.backend.ranks.limits import limit_s
from baechi.backend.ranks.spot import Spot
from baechi.backend.ranks.watcher import Wait, Watcher
from baechi.errors import BaechiError, FirstError, RankError, note, said_by
from baechi.torchlib.private.groups import is_together

_MOST_SENDS = 4
"""So many large sends to a rank are under way at most: a sent tensor keeps its memory until then."""

_SMALL_BYTES = 1 << 16
_MOST_SMALL = 64
"""So many small ones: what is waited for in a row costs less than one by one."""

_AFTER_S = 60.0
"""So much later than the watcher torch's own limit comes."""


class Wires:
    """The ways between this process and the others, on top of torch's default group.

    Args:
        replicas: into how many groups of equal size the processes are divided.

        watcher: of this process.

    Attributes:
        number: which process this is.
        rank: which process of its replica.
        size: how many a replica has.
        replica: which replica this is.
        replicas: how many there are.
        host: the machine of this process.
        limit_s: how long one waits for another, now.
        predicted_s: the predicted step of the model.
        step: which step it is; 0 before the first one.
    """

    def __init__(self, replicas: int, watcher: Watcher) -> None:
        self.number, processes = distributed.get_rank(), distributed.get_world_size()
        self.replicas, self.size = replicas, processes // replicas
        self.replica, self.rank = divmod(self.number, self.size)
        self.host, self.limit_s = watcher.host, limit_s()
        self.predicted_s, self.step = 0.0, 0
        self._device = "cpu"
        limit = timedelta(seconds=self.limit_s + _AFTER_S)
        inside = [range(start, start + self.size) for start in range(0, processes, self.size)]
        across = [range(place, processes, self.size) for place in range(self.size)]
        self._members, self._across = inside[self.replica], across[self.rank]
        self._everyone = range(processes)
        self._groups = [_group(inside, self.number, limit) for _ in range(3)]
        if replicas > 1:
            self._groups += [_group(each, self.number, limit) for each in (across, [self._everyone])]
        self._sends: defaultdict[tuple[int, bool], deque[int]] = defaultdict(deque)
        self._underway: dict[int, tuple[Any, torch.Tensor]] = {}
        self._last = 0
        self._broken = ""
        self._watcher, self._news = watcher, watcher.news

    def be_at(self, spot: Callable[[], Spot]) -> Callable[[], Spot]:
        """Note what says where this rank is, if someone asks; returns what said so before."""
        before, self._watcher.spot = self._watcher.spot, spot
        return before

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
            with self._watched(self._everyone):
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
        is_small = flat.nbytes <= _SMALL_BYTES
        waiting = self._sends[target, is_small]
        if len(waiting) >= (_MOST_SMALL if is_small else _MOST_SENDS):
            self.wait(waiting.popleft(), target)
        try:
            work = self._groups[backward].send([_real(flat)], target, 0)
        except RuntimeError as error:
            raise self._lost((self._members[target],), error) from error
        waiting.append(self._noted((work, flat)))

    def receive(self, flat: torch.Tensor, source: int, *, backward: bool) -> int:
        """Begin to receive into a tensor without gaps; returns what `wait` takes."""
        try:
            work = self._groups[backward].recv([_real(flat)], source, 0)
        except RuntimeError as error:
            raise self._lost((self._members[source],), error) from error
        return self._noted((work, flat))

    def wait(self, transfer: int, other: int) -> None:
        """Wait until a transfer with another rank is over."""
        self._waits((self._members[other],))
        try:
            self._underway[transfer][0].wait()
        except RuntimeError as error:
            raise self._lost((self._members[other],), error) from error
        finally:
            self._watcher.wait = None
        del self._underway[transfer]

    def wait_for_sends(self) -> None:
        """Wait until all that was sent has been read."""
        for (target, _), waiting in self._sends.items():
            while waiting:
                self.wait(waiting.popleft(), target)

    def _noted(self, begun: tuple[Any, torch.Tensor]) -> int:
        """Keep what is under way here alone: after an error each reference to it keeps a connection open."""
        self._last += 1
        self._underway[self._last] = begun
        return self._last

    # --- all of them

    def share(self, flat: torch.Tensor, source: int) -> None:
        """Give all ranks what one has, in place."""
        with self._watched(self._members if source == self.rank else [self._members[source]]):
            self._groups[2].broadcast(flat, source).wait()

    def add_up(self, values: torch.Tensor) -> None:
        """Add up what all ranks have, in place."""
        with self._watched(self._members):
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
        with self._watched(self._members):
            self._groups[2].allgather([found], [mine]).wait()
            return [one.tolist() for one in found]

    def gather_objects(self, mine: Any) -> list[Any]:
        """By rank of this replica, what it gave."""
        return self._gathered(mine, self._groups[2], self._members)

    # --- all processes: also of other replicas

    def gather_all(self, mine: Any) -> list[Any]:
        """By process, what it gave."""
        return self._gathered(mine, self._groups[-1], self._everyone)

    def _gathered(self, mine: Any, group: Any, members: Sequence[int]) -> list[Any]:
        found: list[Any] = [None] * len(members)
        with self._watched(members):
            distributed.all_gather_object(found, mine, group=group)
        return found

    def from_first(self, mine: Any) -> Any:
        """What the first process gave, on all of them."""
        found = [mine]
        with self._watched(self._everyone):
            distributed.broadcast_object_list(found, 0, group=self._groups[-1])
        return found[0]

    def all_do(self, act: Callable[[Any], None]) -> None:
        """Let code of torch's act on the group of all processes."""
        self._refuse_if_broken()
        with self._watched(self._everyone):
            act(self._groups[-1])

    # --- replicas

    def begin_sum(self, flat: torch.Tensor, *, latest: bool = False) -> int:
        """Begin to add up what the ranks with the same part of the model have, in place, or take the last."""
        what = distributed.ReduceOp.MAX if latest else distributed.ReduceOp.SUM
        with self._watched(self._across):
            return self._noted((distributed.all_reduce(flat, what, self.across, async_op=True), flat))

    def wait_for_sum(self, begun: int) -> None:
        """Wait until it is added up."""
        with self._watched(self._across):
            self._underway[begun][0].wait()
        del self._underway[begun]

    def from_first_replica(self, flat: torch.Tensor) -> None:
        """Give the ranks with the same part of the model what the first of them has, in place."""
        with self._watched(self._across):
            distributed.broadcast(flat, self.rank, group=self.across)

    # --- errors

    def _refuse_if_broken(self) -> None:
        heard = self._news.known
        if heard is not None and not self._broken:
            self._let_go(heard)
        if self._broken:
            raise RankError(
                f"the ranks are no longer together: start them again. {self._broken}", first=self._news.known
            )

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

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Within this context an error is told to the other ranks, which end with it."""
        self._refuse_if_broken()
        try:
            yield
        except BaseException as error:  # told, and raised again
            if not (isinstance(error, RankError) and error.on_all):
                self.fail(error)
            raise

    def fail(self, error: BaseException, where: str = "") -> None:
        """Tell the other ranks of an error, and let go of them.

        Args:
            error: the error; the first one of all ranks counts.
            where: the line of code, if it is none of ours.
        """
        if not self._broken:
            said = str(error.args[0]) if isinstance(error, BaechiError) and error.args else said_by(error)
            spot, kind = self._watcher.spot(), type(error).__name__
            text = " ".join([*([said] if said else []), *([f"({where})"] if where else [])])
            told = FirstError(
                self.number, self.host, kind, text, spot.step or None, spot.microbatch, spot.layer
            )
            if self._end_with(told) == told:
                note(error, f"on {told.where}; all ranks were told")

    def end(self) -> None:
        """The script ends: say so to ranks that still wait, and let go of them."""
        self._watcher.stop()
        try:
            self._news.end()
            self._release()
            if self.number == 0:
                self._news.wait_until_ended()
        except distributed.DistError:  # the rank that has the store ended before
            pass

    def tell_of(self, error: BaseException, trace: TracebackType | None) -> None:
        """An error that ends the script, wherever it happened."""
        frames = traceback.extract_tb(trace)
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        self.fail(error, where)

    def _end_with(self, mine: FirstError) -> FirstError:
        """Tell of an error; returns the first one of all ranks, and lets go of them."""
        first = mine
        self._watcher.met = True
        try:
            first = self._news.tell(mine)
            self._let_go(first)
            self._news.wait_until_heard()
        except distributed.DistError:  # the store is gone: each rank says what it knows
            self._let_go(first)
        return first

    def _let_go(self, first: FirstError) -> None:
        self._watcher.met = True
        self._broken = str(first)
        self._release()

    def _release(self) -> None:
        if not self._groups:
            return
        self._sends.clear()
        self._underway.clear()
        while self._groups:  # connections close with the last reference, and then the others notice
            group = self._groups.pop()
            if is_together():
                distributed.destroy_process_group(group)
            del group
        gc.collect()

    @contextmanager
    def _watched(self, others: Sequence[int]) -> Iterator[None]:
        """Within this context this process waits for others, by their numbers among all."""
        self._waits(others)
        try:
            yield
        except BaechiError:
            raise
        except RuntimeError as error:  # gloo's and NCCL's
            traceback.clear_frames(error.__traceback__)  # torch's, which hold on to connections
            raise self._lost(others, error) from error
        finally:
            self._watcher.wait = None

    def _waits(self, others: Sequence[int]) -> None:
        """From now on this process waits for others, by their numbers among all."""
        watcher = self._watcher
        if self._news.known is not None:
            raise self._ended_by(self._news.known)
        watcher.wait = Wait(tuple(others), self.limit_s, watcher.spot, time.monotonic())

    def _lost(self, others: Sequence[int], error: RuntimeError) -> RankError:
        """A connection broke: find out why."""
        lines = said_by(error).strip().splitlines()
        said = lines[0] if lines else type(error).__name__
        spot = self._watcher.spot()
        try:
            found = self._news.first() or self._watcher.culprit() or self._news.first()
        except distributed.DistError:
            gone = FirstError(0, "unknown", "Lost", "its process ended, and torch's store with it")
            found = self._news.known or gone
        if found is None:
            rank = self.number if len(others) > 1 else others[0]
            found = FirstError(rank, "unknown", "Lost", f"a connection broke; torch says: {said}")
        found = replace(found, step=found.step or spot.step or None)
        return self._ended_by(self._end_with(found))

    def _ended_by(self, first: FirstError) -> RankError:
        if not self._broken:
            self._let_go(first)
        return RankError(f"the step was ended by {first}", first=first)


def _real(flat: torch.Tensor) -> torch.Tensor:
    """A tensor as messages have it: of complex numbers the pairs."""
    return torch.view_as_real(flat) if flat.is_complex() else flat


def _group(each: Sequence[Sequence[int]], own: int, limit: timedelta) -> Any:
    """The group that this process is in, of several; all processes make all of them, in one order."""
    made = [distributed.new_group(list(members), timeout=limit) for members in each]
    return made[[own in members for members in each].index(True)]
