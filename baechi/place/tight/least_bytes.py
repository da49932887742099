"""Lower bounds on memory, in any order and at any speed; proofs and the integer program rely on them.

Ledger and simulator count what a plan takes. These are bytes that no plan can do without:

    always      weights; in training optimizer state
    kept        bytes when forward is over: `always`, what autograd saves and variables hold, and the
                model's outputs. If gradients of all layers come through the last one, on its
                device also what its backward needs: nothing is freed before
    stepping    bytes on top of `always` when the optimizer steps: gradients, and its transient bytes
    moment      bytes on top of `always` while one layer runs: its output and transient bytes, and its
                inputs, as the originals or as copies, whichever is less

Uploads, and in training copies from other devices, are kept as well. They depend on the placement.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from baechi.cost.indexed_graph import FROM_HOST
from baechi.cost.memory import least_update_bytes
from baechi.place.problem import Problem


class LeastBytes(NamedTuple):
    """The least bytes that a group takes on its device, independent of other groups there.

    Args:
        always_bytes: permanent bytes.
        kept_bytes: bytes when forward is over, including `always_bytes`.
        moment_bytes: the most on top of `always_bytes` while one of its layers runs.
        gradient_bytes: gradients of its weights when the optimizer steps.
        update_bytes: transient bytes of the optimizer's step, for all its weights.
        largest_update_bytes: the most of these for one weight.
        top_bytes: the most that one of its layers may need on top of `kept_bytes`.
    """

    always_bytes: int
    kept_bytes: int
    moment_bytes: int
    gradient_bytes: int
    update_bytes: int
    largest_update_bytes: int
    top_bytes: int

    @property
    def alone_bytes(self) -> int:
        """The least bytes that it takes if it is alone on a device."""
        stepping = self.gradient_bytes + least_update_bytes(self.update_bytes, self.largest_update_bytes)
        return max(self.kept_bytes, self.always_bytes + max(self.moment_bytes, stepping))

    def with_other(self, other: "LeastBytes") -> "LeastBytes":
        """The least bytes of two groups on one device."""
        return LeastBytes(
            self.always_bytes + other.always_bytes,
            self.kept_bytes + other.kept_bytes,
            max(self.moment_bytes, other.moment_bytes),
            self.gradient_bytes + other.gradient_bytes,
            self.update_bytes + other.update_bytes,
            max(self.largest_update_bytes, other.largest_update_bytes),
            max(self.top_bytes, other.top_bytes),
        )


def least_bytes(problem: Problem) -> list[LeastBytes]:
    """Compute the least bytes of each group."""
    least = [of_members(problem, members) for members in problem.indexed.members]
    if problem.training and not problem.knows_host and _all_lead_to_last(problem):
        group, more = problem.indexed.group_of[-1], _last_bytes(problem)
        least[group] = least[group]._replace(kept_bytes=least[group].kept_bytes + more)
    return least


def all_together(least: Sequence[LeastBytes]) -> int:
    """The least bytes of all groups on all devices together, when forward is over or the optimizer steps."""
    kept = sum([part.kept_bytes for part in least])
    return max(kept, sum([part.always_bytes + part.gradient_bytes for part in least]))


def of_members(problem: Problem, members: Sequence[int]) -> LeastBytes:
    """Compute the least bytes of some layers that share a device."""
    parts = [problem.footprints[layer] for layer in members]
    always = sum([part.always_bytes for part in parts])
    returned = [problem.footprints[layer].output_bytes for layer in members if _is_returned(problem, layer)]
    return LeastBytes(
        always_bytes=always,
        kept_bytes=always + sum([_kept_bytes(problem, layer) for layer in members]) + sum(returned),
        moment_bytes=max([moment_bytes(problem, layer) for layer in members]),
        gradient_bytes=sum([part.gradient_bytes for part in parts]),
        update_bytes=sum([part.update_bytes for part in parts]),
        largest_update_bytes=max([part.largest_update_bytes for part in parts]),
        top_bytes=max([max(part.forward_bytes, part.backward_bytes) for part in parts]),
    )


def _kept_bytes(problem: Problem, layer: int) -> int:
    """A layer's bytes when forward is over, independent of the devices of its consumers."""
    saved = problem.footprints[layer].saved_bytes
    if not problem.knows_host:
        return saved
    costs = problem.indexed.costs[layer]
    return max(0, saved - ceil(costs.lent_bytes) - ceil(costs.held_bytes))


def moment_bytes(problem: Problem, layer: int) -> int:
    """The least bytes on top of the permanent ones while a layer runs."""
    indexed, part = problem.indexed, problem.footprints[layer]
    sizes: dict[int, int] = {}
    for tensor in indexed.reads[layer]:
        maker = indexed.source[tensor]
        sizes[maker] = sizes.get(maker, 0) + indexed.size_bytes[tensor]
    read, kept = sizes.pop(FROM_HOST, 0), 0
    kept = read
    for maker, size in sizes.items():
        home = problem.footprints[maker]
        saved = home.saved_bytes if problem.training else 0
        beside = indexed.group_of[maker] == indexed.group_of[layer]
        read += home.output_bytes + saved if beside else min(size, home.output_bytes + saved)
        kept += saved if beside else min(size, saved)
    forward = part.saved_bytes + part.forward_bytes + read
    if not problem.training or problem.knows_host:  # in backward most may be freed by then
        return forward
    return max(forward, part.saved_bytes + part.upstream_bytes + part.temp_bytes + part.gradient_bytes + kept)


def _all_lead_to_last(problem: Problem) -> bool:
    """Whether gradients of all layers come through the last one."""
    indexed = problem.indexed
    found = {len(indexed) - 1}
    for layer in reversed(range(len(indexed) - 1)):
        if any(reader in found for tensor in indexed.makes[layer] for reader in indexed.graded[tensor]):
            found.add(layer)
    return len(found) == len(indexed)


def _last_bytes(problem: Problem) -> int:
    """What the last layer needs on top of all that is kept when forward is over."""
    last = len(problem.indexed) - 1
    part = problem.footprints[last]
    freed = part.output_bytes if _is_returned(problem, last) else 0
    return max(part.temp_bytes, part.backward_bytes - freed)


def _is_returned(problem: Problem, layer: int) -> bool:
    """Whether no layer reads its output, and no variable of the model's code releases it."""
    return not problem.indexed.makes[layer] and layer not in problem.named


def least_peaks(problem: Problem, least: Sequence[LeastBytes], device_of: Sequence[int]) -> list[int]:
    """A lower bound on each device's peak."""
    always, kept, gradient = ([0] * len(problem.devices) for _ in range(3))
    moment, update, largest = ([0] * len(problem.devices) for _ in range(3))
    for part, device in zip(least, device_of, strict=True):
        always[device] += part.always_bytes
        kept[device] += part.kept_bytes
        moment[device] = max(moment[device], part.moment_bytes)
        gradient[device] += part.gradient_bytes
        update[device] += part.update_bytes
        largest[device] = max(largest[device], part.largest_update_bytes)
    for tensor, readers in enumerate(problem.indexed.consumers):
        maker = problem.indexed.source[tensor]
        if maker == FROM_HOST or problem.training:
            home = problem.host if maker == FROM_HOST else device_of[problem.indexed.group_of[maker]]
            for there in {device_of[problem.indexed.group_of[reader]] for reader in readers} - {home}:
                kept[there] += problem.indexed.size_bytes[tensor]
    stepping = [g + least_update_bytes(*pair) for g, *pair in zip(gradient, update, largest, strict=True)]
    tops = [max(pair) for pair in zip(moment, stepping, strict=True)]
    return [max(k, a + top) for k, a, top in zip(kept, always, tops, strict=True)]
