"""The replicas of a model, one for each target, brought up to date at each call."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from baechi.backend import AbstractBackend, backend_of
from baechi.backend.real.devices import TorchDevices
from baechi.backend.virtual.current import at_work
from baechi.backend.virtual.devices import VirtualDevices
from baechi.dispatch.replicas.buffers import OwnBuffers
from baechi.dispatch.replicas.replica import AbstractReplica, DeviceReplica, PlanReplica
from baechi.dispatch.replicas.shell import fingerprint_of, same_fingerprint, shell_of
from baechi.dispatch.replicas.weights import Stamp, Weights, differentiable, stamp_of, weights_in
from baechi.dispatch.schedulers.targets import Target
from baechi.errors import FatalError
from baechi.run.assign import assign, refuse_distributed


class Replicas:
    """A model at several targets.

    The first target that lies where the model lies has the model itself; others have copies.

    Args:
        model: the master.
        targets: where replicas lie.

    Raises:
        FatalError: the model has no weights yet (`meta`), a device is not here, or targets are emulated and
            real.
    """

    def __init__(self, model: nn.Module, targets: Sequence[Target]) -> None:
        refuse_distributed(model)
        if any(weight.is_meta for weight in weights_in(model)):
            raise FatalError(
                f"this {type(model).__name__} is on `meta`: load its weights before it is dispatched"
            )
        self.model, self.targets = model, {target.name: target for target in targets}
        self.backend = backend_for(targets)
        self._weights: dict[str, Weights] = {}
        self._replicas: dict[str, AbstractReplica] = {}
        self._fingerprints: dict[str, list[Any]] = {}
        self._copies: dict[str, dict[int, torch.Tensor] | None] = {}
        self._stamps: dict[str, list[Stamp]] = {}
        self._ready: set[str] = set()
        self._learning: dict[str, dict[int, torch.Tensor]] = {}
        self._now: list[Any] = []
        self._shares_model: str | None = None

    def begin(self) -> None:
        """A call begins: what changed on the master is brought to each replica before its first chunk."""
        self._ready, self._learning = set(), {}
        self._now = fingerprint_of(self.model)
        home = self.home
        at_home = [name for name, target in self.targets.items() if target.plan is None]
        at_home = [name for name in at_home if home is None or self.targets[name].device == home]
        self._shares_model = at_home[0] if at_home else None

    def end(self) -> None:
        """A call is over: its arguments are let go."""
        for replica in self._replicas.values():
            replica.forget()

    def stale(self) -> None:
        """At the next call everything is copied again, also what no version tells of."""
        self._replicas, self._weights, self._fingerprints = {}, {}, {}

    @property
    def home(self) -> str | None:
        """Where the model lies; None if it has no weights, so that it lies everywhere."""
        places = {self.backend.place_of(weight) for weight in weights_in(self.model)}
        if len(places) > 1:
            return ""
        return next(iter(places), None)

    def at(self, name: str) -> AbstractReplica:
        """A target's replica, up to date."""
        if name not in self._ready:
            replica = self._replicas[name] = self._updated(self.targets[name])
            replica.buffers = OwnBuffers(replica.model, self.model)
            replica.at_work = self._ready
            self._ready.add(name)
        return self._replicas[name]

    def _updated(self, target: Target) -> AbstractReplica:
        if target.plan is not None:
            return self._planned(target)
        replica = self._replicas.get(target.name)
        if not isinstance(replica, DeviceReplica):
            self._fingerprints.pop(target.name, None)
            replica = DeviceReplica(target.name, self.backend, target.device, self.model)
        replica.model = self._modules(target, replica)
        return replica

    def _modules(self, target: Target, replica: DeviceReplica) -> nn.Module:
        """The modules of a replica: those that it has, if nothing is new. It may be interrupted."""
        if target.name == self._shares_model:
            return self.model
        masters = weights_in(self.model)
        if self.home in (None, target.device):
            copies, lies_elsewhere = {id(master): master for master in masters}, None
        else:
            weights = self._weights.setdefault(target.device, Weights(self.backend, target.device))
            weights.refresh(masters)
            copies = lies_elsewhere = weights.copies
        known = self._fingerprints.get(target.name)
        learns = torch.is_grad_enabled() and any(master.requires_grad for master in masters)
        if learns and self.home != target.device:
            if target.device not in self._learning:
                self._learning[target.device] = differentiable(masters, self.backend, target.device)
            self._fingerprints.pop(target.name, None)
            return shell_of(self.model, {**copies, **self._learning[target.device]})
        same_copies = lies_elsewhere is self._copies.get(target.name)
        if known is None or not same_copies or not same_fingerprint(known, self._now):
            replica.model = shell_of(self.model, copies)
            self._fingerprints[target.name], self._copies[target.name] = self._now, lies_elsewhere
        return replica.model

    def _planned(self, target: Target) -> AbstractReplica:
        assert target.plan is not None
        masters = weights_in(self.model)
        if torch.is_grad_enabled() and any(master.requires_grad for master in masters):
            raise FatalError(
                f"target {target.name} is a plan over several devices, and those do not train: call it under "
                "torch.no_grad(), or train with baechi.distribute"
            )
        known, replica = self._fingerprints.get(target.name), self._replicas.get(target.name)
        stamps = [stamp_of(master) for master in masters]
        unchanged = None not in stamps and stamps == self._stamps.get(target.name)
        if replica is not None and unchanged and known is not None and same_fingerprint(known, self._now):
            return replica
        self._replicas.pop(target.name, None)  # its memory is free before the new one is made
        self._fingerprints[target.name], self._stamps[target.name] = self._now, stamps
        distributed = assign(copy.deepcopy(self.model), target.plan)
        return PlanReplica(target.name, backend_of(target.plan.cluster), distributed)


def backend_for(targets: Sequence[Target]) -> AbstractBackend:
    """The backend of all targets."""
    emulator = at_work()
    open_names = () if emulator is None else emulator.cluster.names
    names = list(dict.fromkeys([device for target in targets for device in target.devices]))
    emulated = [_is_emulated(target, open_names) for target in targets]
    if any(emulated) and not all(emulated):
        kinds = ", ".join(
            f"{target.name} is {'emulated' if one else 'real'}"
            for target, one in zip(targets, emulated, strict=True)
        )
        raise FatalError(f"emulated and real devices do not mix: {kinds}")
    if any(emulated):
        return VirtualDevices(names)
    for name in names:
        _refuse_missing(name)
    return TorchDevices(names)


def _refuse_missing(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch has one for each kind of device
        kind = torch.accelerator.current_accelerator(check_available=True)
        seen = f"{torch.accelerator.device_count()} of type {kind.type}" if kind is not None else "none"
        raise FatalError(
            f"there is no device {name!r} ({error}); torch sees {seen} beside the CPU. An emulated device is "
            "given by its baechi.Cluster"
        ) from error


def _is_emulated(target: Target, open_names: Sequence[str]) -> bool:
    if target.cluster is not None:
        return target.cluster.emulated
    return target.device in open_names
