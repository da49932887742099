"""When and how much on one device: by events and the allocator where it has streams, else by the host."""

from typing import Any

import torch

from baechi.backend.real.driver import DRIVER, Driver


class Stopwatch:
    """The time of one device, and the memory that is taken there.

    Args:
        device: the device.
        driver: answers questions about accelerators.
    """

    def __init__(self, device: torch.device, driver: Driver = DRIVER) -> None:
        self.device = device
        self._driver = driver
        self.has_streams = driver.has_streams(device)

    def now(self) -> Any:
        """A moment: when what this thread has put on the device so far is over."""
        return self._driver.timed_event(self.device) if self.has_streams else self._driver.host_s()

    def seconds(self, first: Any, last: Any) -> float:
        """From one moment to another; `wait` comes before."""
        return self._driver.elapsed_s(first, last) if self.has_streams else last - first

    def wait(self) -> None:
        """Wait until nothing runs on the device."""
        if self.has_streams:
            self._driver.synchronize(self.device)

    def host_s(self) -> float:
        """The host's clock."""
        return self._driver.host_s()

    def spin(self, seconds: float) -> None:
        """Let the device fall behind the host by about some seconds; the host itself is never behind."""
        if self.has_streams:
            self._driver.spin(self.device, seconds)

    def empty_caches(self) -> None:
        """Put other bytes in the caches of a device with streams, as the rest of a model would."""
        if self.has_streams:
            torch.zeros(2 * self._driver.cache_bytes(self.device), dtype=torch.uint8, device=self.device)

    def live_bytes(self) -> int:
        """What tensors take there; 0 where no allocator counts."""
        return self._driver.live_bytes(self.device) if self.has_streams else 0

    def peak_bytes(self) -> int:
        """The most that they took since `restart_peak`; 0 where no allocator counts."""
        return self._driver.peak_bytes(self.device) if self.has_streams else 0

    def restart_peak(self) -> None:
        """Forget the most that they took."""
        if self.has_streams:
            self._driver.restart_peak(self.device)
