"""What a call in microbatches returns: results joined, with a backward that hands gradients over."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.run.pipeline.batch.join import joined, loss_in
from baechi.run.pipeline.batch.judge import Verdict
from baechi.run.pipeline.batch.partition import Parted
from baechi.run.pipeline.batch.results import Joiner, Joint, Root, hand_in
from baechi.run.pipeline.graph.gradients import scaled
from baechi.run.pipeline.graph.handing_over import handed_over, without_gradient
from baechi.torchlib.streams import streams_now
from baechi.torchlib.tensors.pytree import map_tensors


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of a call.

    Args:
        parts: what each microbatch gets of it.
        verdict: what the loss of each part counts, and how outputs are joined.
        home: where its results go; None leaves them where they were made.
        dims: the dimensions along which inputs are split, as far as that was said.
    """

    parts: Parted
    verdict: Verdict
    home: str | None
    dims: Sequence[int]


@dataclass(frozen=True, eq=False)
class Returned:
    """Makes one result of those of the microbatches.

    Args:
        backend: the devices.
        batch: the batch.
        leaves: the weights and inputs that get gradients.
        gradients: theirs, once backward is over.
        run_later: runs the backwards that waited for `backward()`.
    """

    backend: AbstractBackend
    batch: Batch
    leaves: Callable[[], Collection[torch.Tensor]]
    gradients: Callable[[], list[torch.Tensor | None]]
    run_later: Callable[[], object]

    def result(self, results: list[Any], root: Root | None, *, seeded: bool) -> Any:
        """The joined outputs; without a loss, `backward()` of them runs the rest of the list."""
        verdict = self.batch.verdict
        join = Joiner(
            verdict.found.apart, self.backend, verdict, [*self.batch.dims, 0], self.batch.home, root
        )
        with torch.no_grad():
            whole = joined(results, join)
        results.clear()
        if seeded:
            return self._with_loss(whole, join.joints)
        if not join.joints:
            return whole
        values = list(map(attrgetter("value"), join.joints))
        handed = handed_over(values, list(self.leaves()), partial(self._drained, join.joints))
        if whole is values[0]:
            return handed[0]
        made = dict(zip(map(id, values), handed, strict=True))
        return map_tensors(lambda tensor: made.get(id(tensor), tensor), whole)

    def _with_loss(self, whole: Any, joints: list[Joint]) -> Any:
        """The loss of the batch, whose gradients wait; other outputs have no gradient any more."""
        loss, given, waiting = loss_in(whole), [], []
        for one, grad in zip(self.leaves(), self.gradients(), strict=True):
            if grad is not None:
                given.append(one)
                waiting.append(grad)
                del grad
        assert loss is not None
        streams = streams_now(map(self.backend.torch_device, self.backend.names))
        (handed,) = handed_over([loss], given, partial(scaled, self.backend, waiting, streams))
        made = {id(joint.value): without_gradient(joint.value, [handed]) for joint in joints}
        made[id(loss)] = handed
        return map_tensors(lambda tensor: made.get(id(tensor), tensor), whole)

    def _drained(
        self, joints: list[Joint], incoming: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Run the backwards of all microbatches, from the gradients of the joined outputs."""
        with torch.no_grad():
            for joint, grad in zip(joints, incoming, strict=True):
                if grad is not None:
                    hand_in(self.backend, joint, grad, self.batch.parts.rows)
        joints.clear()
        self.run_later()
        return self.gradients()


def no_root(microbatch: int, tensor: torch.Tensor) -> None:
    """Gradients of what a microbatch returned come in no more: its backward is over."""


def ended(tensor: torch.Tensor, leads_to: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """An output of a microbatch that goes backward: it says why it has no gradient when that is asked for."""
    return without_gradient(tensor.detach(), leads_to) if tensor.requires_grad else tensor
