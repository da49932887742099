"""A node of the layer graph while it is being drafted, and what it costs in bytes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from baechi.capture.watch.trace import Op, Storage, Use, peak_bytes
from baechi.records.device import HostWork


@dataclass(slots=True, eq=False)
class Draft:
    """A node: what it is, what it did, what memory it made and owns.

    Args:
        name: the node's name.
        kind: `"layer"` or `"glue"`.
        module: qualified name of the module it is a call of, or that its code stands in.
        type: class name of a layer, function name of glue.
        first, last: numbers of its first and last event.
        made: storages that its operations made, each with the event that made it.
        taken_in: those of `made` that had no place before it read them.
        weights: storages of parameters and buffers that it owns.
        escaped: storages of `made` that something outside of it reads or gets.
        held: storages of `made` that stay referenced after their last read, to the end of forward.
        held_until: the node during which the last of the others is released, if none of their readers.
        awaited_before: if the host waits for its values, the node that the code reaches next.
        waits: how many kernels it had launched whenever the host waited for its values.
        lent: those of `escaped` that autograd keeps for readers only, not for this node.
        returned: what the model returns of it: bytes, by the place among all that it returns.
        losses: those of them where backward begins.
        given_grad_bytes: gradients of what it was given, which its backward makes.
        moved_grad_bytes: gradients of weights that its backward makes first, though others own these; less
            those that others make before it does.
        second_grad_bytes: for weights that others, after it, read too: the gradient that is there already.
        kernels: how many it launched.
        host_work: what torch did on the host for it.
        writes: whose memory it writes in place that others read: `"given"` to it, or `"other"`.
        as_reached: whether it draws random numbers, or writes memory that it did not make.
        reaches: whether it reads what it was not given: in an object, in another module.
        flops, moved_bytes: by dtype name.
        arithmetic: of each operation that has some, its flops and moved bytes.
        backward_kernels, backward_host_work, backward_flops, backward_moved_bytes, backward_arithmetic: of
            its part of the backward.
        backward_temp_bytes: what that part holds at most, beside gradients of weights; None if unknown.
        backward_rise_bytes: what that part adds to what is there at most; None if unknown.
        runs_again: nodes whose forward runs again in its part, each with which part of that.
        delivered: storages of `made` that the model returns.
        lasting: others that autograd keeps, or that are held, and that are there when backward is over.
        work: its operations: what two layers have in common that take the same time.
    """

    name: str
    kind: str
    module: str
    type: str
    first: int
    last: int
    made: dict[int, tuple[Storage, int]] = field(default_factory=dict)
    taken_in: set[int] = field(default_factory=set)
    weights: list[Storage] = field(default_factory=list)
    escaped: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    held_until: str = ""
    awaited_before: str = ""
    waits: list[int] = field(default_factory=list)
    lent: set[int] = field(default_factory=set)
    returned: dict[str, int] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    given_grad_bytes: int = 0
    moved_grad_bytes: int = 0
    second_grad_bytes: int = 0
    kernels: int = 0
    host_work: Counter[HostWork] = field(default_factory=Counter)
    writes: str = ""
    as_reached: bool = False
    reaches: bool = False
    flops: dict[str, int] = field(default_factory=dict)
    moved_bytes: dict[str, int] = field(default_factory=dict)
    arithmetic: list[tuple[int, int]] = field(default_factory=list)
    backward_kernels: int = 0
    backward_host_work: Counter[HostWork] = field(default_factory=Counter)
    backward_flops: int = 0
    backward_moved_bytes: int = 0
    backward_arithmetic: list[tuple[int, int]] = field(default_factory=list)
    backward_temp_bytes: int | None = None
    backward_rise_bytes: int | None = None
    runs_again: dict[str, float] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    lasting: set[int] = field(default_factory=set)
    work: list[tuple[str, str, int, int]] = field(default_factory=list)

    def give(self, place: str, use: Use, *, is_loss: bool) -> None:
        """The model returns something that it made."""
        self.returned[place] = use.size_bytes
        self.delivered.add(use.storage.index)
        if is_loss:
            self.losses[place] = use.size_bytes

    def note(self, op: Op, event: int, host_work: Mapping[HostWork, int]) -> None:
        """Count an operation, and what torch did on the host since the node before."""
        self.last = max(self.last, event)
        self.kernels += op.kernel
        self.host_work.update(host_work)
        self.flops[op.dtype] = self.flops.get(op.dtype, 0) + op.flops
        self.moved_bytes[op.dtype] = self.moved_bytes.get(op.dtype, 0) + op.moved_bytes
        self.arithmetic += [(op.flops, op.moved_bytes)] if op.flops else []
        self.work.append((op.name, op.dtype, op.flops, op.moved_bytes))
        for use in op.makes:
            self.made.setdefault(use.storage.index, (use.storage, event))

    def runs_backward(self) -> bool:
        """Whether a gradient goes through it; a node without outputs of its own may pass one on."""
        escaped = self._escaped()
        return not escaped or any(storage.requires_grad for storage in escaped)

    def attributes(self, *, training: bool, names: dict[int, list[str]]) -> dict[str, Any]:
        """The attributes of the finished node; amounts of 0 are left out."""
        most_bytes = peak_bytes(self.made.values(), self.last)
        amounts = {
            "param_bytes": _size(w for w in self.weights if w.parameter),
            "buffer_bytes": _size(w for w in self.weights if not w.parameter),
            "output_bytes": _size(self._escaped()),
            "held_bytes": _size(s for s in self._held() if not (training and s.saved)),
            "temp_bytes": most_bytes - _size(self._kept(training=training)),
            "kernels": self.kernels,
            "flops": sum(self.flops.values()),
            "moved_bytes": sum(self.moved_bytes.values()),
        }
        if training:
            amounts["grad_bytes"] = _size(w for w in self.weights if w.trained)
            amounts["largest_grad_bytes"] = max([w.size_bytes for w in self.weights if w.trained], default=0)
            amounts["grads"] = sum([w.trained for w in self.weights])
            amounts["saved_bytes"] = _size(s for s, _ in self.made.values() if s.saved)
            amounts["lent_bytes"] = _size(self.made[index][0] for index in self.lent)
            amounts["upstream_grad_bytes"] = _size(s for s in self._escaped() if s.requires_grad)
            amounts["forward_temp_bytes"] = amounts["temp_bytes"]
            if self.backward_rise_bytes is not None:
                amounts["backward_rise_bytes"] = self.backward_rise_bytes
                amounts["lasting_bytes"] = _size(self.made[index][0] for index in self.lasting)
            else:
                amounts["backward_rise_bytes"] = self._backward_bytes() + amounts["grad_bytes"]
            amounts["temp_bytes"] = max(amounts["temp_bytes"], self._backward_bytes())
            amounts["backward_kernels"] = self.backward_kernels
            amounts["backward_flops"] = self.backward_flops
            amounts["backward_moved_bytes"] = self.backward_moved_bytes
        attributes: dict[str, Any] = {"kind": self.kind, "module": self.module, "type": self.type}
        attributes |= {name: amount for name, amount in amounts.items() if amount > 0}
        if self.moved_bytes:
            attributes["dtype"] = max(self.moved_bytes, key=lambda d: (self.flops[d], self.moved_bytes[d]))
        if self.host_work:
            attributes["host_work"] = dict(self.host_work)
        if training and self.backward_host_work:
            attributes["backward_host_work"] = dict(self.backward_host_work)
        if self.arithmetic:
            attributes["arithmetic"] = _alike_together(self.arithmetic)
        if training and self.backward_arithmetic:
            attributes["backward_arithmetic"] = _alike_together(self.backward_arithmetic)
        if amounts["output_bytes"]:
            attributes["passing_bytes"] = _size(self.passing(training=training).values())
        if self.held_until:
            attributes["held_until"] = self.held_until
        if self.awaited_before:
            attributes["awaited_before"] = self.awaited_before
        if any([number < self.kernels for number in self.waits]):
            attributes["awaited_after"] = list(dict.fromkeys(self.waits))
        if self.returned:
            attributes["returned"] = dict(self.returned)
        if training and self.moved_grad_bytes:
            attributes["backward_grad_bytes"] = amounts["grad_bytes"] + self.moved_grad_bytes
        if training and self.losses:
            attributes["losses"] = dict(self.losses)
        if self.runs_again:
            attributes["runs_again"] = dict(self.runs_again)
        if self.writes:
            attributes["writes"] = self.writes
        if self.as_reached:
            attributes["as_reached"] = True
        if self.reaches:
            attributes["reaches"] = True
        if self.weights:
            attributes["weights"] = [name for w in self.weights for name in names[w.index]]
        return attributes

    def passing(self, *, training: bool) -> dict[int, Storage]:
        """Its outputs that neither the model's code holds to the end nor autograd keeps, by storage."""
        return {
            s.index: s for s in self._escaped() if s.index not in self.held and not (training and s.saved)
        }

    def _escaped(self) -> list[Storage]:
        return [storage for index, (storage, _) in self.made.items() if index in self.escaped]

    def _kept(self, *, training: bool) -> list[Storage]:
        """What is still there when the node is done: its outputs, what autograd keeps, what is held."""
        return [
            s
            for index, (s, _) in self.made.items()
            if index in self.escaped or index in self.held or (training and s.saved)
        ]

    def _held(self) -> list[Storage]:
        return [storage for index, (storage, _) in self.made.items() if index in self.held]

    def _backward_bytes(self) -> int:
        if self.backward_temp_bytes is not None:
            return self.backward_temp_bytes + self.second_grad_bytes
        return self._guessed_backward_bytes() + self.given_grad_bytes + 2 * self.second_grad_bytes

    def _guessed_backward_bytes(self) -> int:
        """Gradients of what is inside a layer: one being read, one being written, at a time."""
        inside = [s for index, (s, _) in self.made.items() if index not in self.escaped and s.requires_grad]
        return sum(sorted(storage.size_bytes for storage in inside)[-2:])


def _alike_together(kernels: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Kernels with as many flops a byte are as fast as one that does the work of all of them."""
    found: dict[float, tuple[int, int]] = {}
    for flops, moved_bytes in kernels:
        so_far = found.get(moved_bytes / flops, (0, 0))
        found[moved_bytes / flops] = so_far[0] + flops, so_far[1] + moved_bytes
    return tuple(found.values())


def _size(storages: Iterable[Storage]) -> int:
    return sum(storage.size_bytes for storage in storages)
