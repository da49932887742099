"""What the ledgers of forward and backward are told, and whom they tell."""

from typing import Protocol


class Counter(Protocol):
    """Counts bytes on devices."""

    def issue(self, device: int, size_bytes: int, now_s: float, least_s: float | None = None) -> None:
        """The host asks for bytes."""

    def free(self, device: int, size_bytes: int) -> None:
        """Bytes are freed that only the device's own stream used."""

    def drop(self, device: int, size_bytes: int, until_s: float, now_s: float) -> None:
        """Bytes are released that streams may still use."""
