"""Memory while placing: the interface of ledgers."""

from typing import Protocol


class Ledger(Protocol):
    """Records what is placed where, and counts its bytes. Layers, groups and devices are indexes.

    A placer asks before it acts: `place` and `run` do not check.
    """

    device_of: list[int]
    """By group, its device, or `ANYWHERE`."""

    def needed_bytes(self, device: int) -> int:
        """The bytes that a device needs for all groups placed there and all layers run there.

        Args:
            device: a device.
        """

    def slack_bytes(self, device: int) -> int:
        """The bytes that a device has left for the next layer that runs there.

        Args:
            device: a device.
        """

    def short_bytes(self, layer: int, device: int) -> int:
        """How many bytes are missing to run a layer next, and to hold its group.

        Args:
            layer: a layer whose predecessors have run.
            device: where it would run; if its group is placed, where that is.

        Returns:
            Positive: bytes missing. Otherwise it fits, with minus this many bytes left.
        """

    def group_short_bytes(self, group: int, device: int) -> int:
        """How many bytes are missing to place a group, counting only what its layers' order cannot change.

        Args:
            group: a group that is not placed.
            device: where it would lie.

        Returns:
            Positive: bytes missing. Otherwise it fits, with minus this many bytes left.
        """

    def place(self, group: int, device: int) -> None:
        """Put a group on a device.

        Args:
            group: a group that is not placed.
            device: where it lies from now on.
        """

    def run(self, layer: int) -> None:
        """Let a layer run next on the device of its group.

        Args:
            layer: a layer whose group is placed, and whose predecessors have run.
        """
