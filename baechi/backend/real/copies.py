"""Copies between devices that torch itself knows: directly where that can be trusted, or through the host."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from baechi.backend.real.driver import Driver
from baechi.backend.real.p2p_check import is_trusted
from baechi.backend.real.step_clock import StepClock
from baechi.backend.real.streams import TorchStreams
from baechi.torchlib.tensors.layout import copy_with_layout

_NOTHING = nullcontext()

_BEHIND_S = 200e-6
"""More than the host takes to ask for a copy."""


class Copies:
    """Copies tensors from device to device, on streams.

    Args:
        names: the devices.
        host: name of the host.
        streams: their streams.
        driver: answers questions about accelerators.
    """

    def __init__(self, names: Sequence[str], host: str, streams: TorchStreams, driver: Driver) -> None:
        self._names = names
        self._host = host
        self._streams = streams
        self._driver = driver
        self._trusted: dict[tuple[str, str], bool] = {}

    def copy(
        self,
        tensor: torch.Tensor,
        ends: tuple[str, str],
        streams: tuple[Any, Any],
        clock: StepClock | None = None,
    ) -> torch.Tensor:
        """Copy a tensor."""
        source, target = ends
        if self._is_trusted(source, target):
            return self._copy(tensor, ends, streams, clock)
        staged = self._copy(tensor, (source, self._host), (streams[0], None), clock)
        return self._copy(staged, (self._host, target), (None, streams[1]), clock)

    def seconds(self, tensor: torch.Tensor, ends: tuple[str, str]) -> float:
        """How long a copy takes, without the host's time to ask for it where there are streams."""
        source, target = ends
        tx, rx = streams = self._streams.transfer(source, target)
        own, driver = tx or rx, self._driver
        begun_s = self.idle_s()
        if own is None or not self._is_trusted(source, target):
            self.copy(tensor, ends, streams)
            return self.idle_s() - begun_s
        device = self._streams.device(source if tx else target)
        with driver.on(own):
            driver.spin(device, _BEHIND_S)
            start = driver.timed_event(device)
        self._copy(tensor, ends, streams)
        with driver.on(own):
            end = driver.timed_event(device)
        self.idle_s()
        return driver.elapsed_s(start, end)

    def idle_s(self) -> float:
        """The host's clock, once all devices have done what they were asked for."""
        for device in {self._streams.device(name) for name in self._names}:
            if self._streams.has_streams(device):
                self._driver.synchronize(device)
        return self._driver.host_s()

    def _is_trusted(self, source: str, target: str) -> bool:
        known = self._trusted.get((source, target))
        if known is None:
            both = source in self._names and target in self._names and self._host not in (source, target)
            known = not both or is_trusted(source, target, self._host, self._test_copy)
            self._trusted[source, target] = known
        return known

    def _test_copy(self, tensor: torch.Tensor, source: str, target: str) -> torch.Tensor:
        streams = self._streams.transfer(source, target)
        copied = self._copy(tensor, (source, target), streams)
        for stream in streams:
            if stream is not None:
                stream.synchronize()
        return copied

    def _copy(
        self,
        tensor: torch.Tensor,
        ends: tuple[str, str],
        streams: tuple[Any, Any],
        clock: StepClock | None = None,
    ) -> torch.Tensor:
        device = self._streams.device(ends[1])
        travels = _NOTHING if clock is None else clock.transfer(tensor, ends)
        # a peer copy is ordered with the current streams of both ends
        with self._driver.on(*dict.fromkeys([one for one in streams if one is not None])), travels:
            copied = copy_with_layout(tensor, device)
        if ends[1] == self._host and streams[0] is not None:
            streams[0].synchronize()
        return copied
