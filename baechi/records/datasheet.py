"""What makers publish about their devices: memory, rates, usual link (`profiles/devices.json`)."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from baechi.records import files
from baechi.records.device import Device, Link, Reserve, reserved_bytes
from baechi.units import parse_bytes


@cache
def _devices() -> dict[str, dict[str, Any]]:
    return dict(files.read("devices", files.profiles_folder() / "devices.json")["devices"])


def known_kinds() -> tuple[str, ...]:
    """The kinds of device that have a datasheet, sorted."""
    return tuple(sorted(_devices()))


def datasheet(kind: str) -> dict[str, Any]:
    """The published figures of a device.

    Args:
        kind: such as `"A100-80GB"`; see `known_kinds`.

    Returns:
        `memory_bytes`, `bytes_per_s` and `flops_per_s` (by dtype name), as `Device` takes them.

    Raises:
        ValueError: no datasheet of that kind.
    """
    sheet = _sheet(kind)
    return {key: sheet[key] for key in ("memory_bytes", "bytes_per_s", "flops_per_s")}


def usual_link(kind: str) -> Link:
    """The link by which devices of this kind are usually joined, one direction.

    Args:
        kind: see `known_kinds`.

    Raises:
        ValueError: no datasheet of that kind.
    """
    return Link(**_sheet(kind)["link"])


def equal_devices(
    n: int, prefix: str, memory: int | str | Sequence[int | str] | None, like: str, reserve: Reserve = 0
) -> tuple[Device, ...]:
    """Devices of one kind.

    Args:
        n: how many, at least 1.
        prefix: they are named `"prefix:0"`, `"prefix:1"` and so on.
        memory: memory of each, bytes or text, or a sequence of n of them; None: the datasheet's.
        like: whose datasheet gives the rates.
        reserve: what plans leave free of each.

    Raises:
        ValueError: n is below 1, a size is no size, there are not n of them, or no such datasheet.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"a cluster of {n!r} devices: it needs at least 1")
    sheet = datasheet(like)
    sizes = [memory] * n if memory is None or isinstance(memory, (int, float, str)) else list(memory)
    if len(sizes) != n:
        raise ValueError(f"{len(sizes)} memory sizes for {n} devices")
    whole_bytes = [sheet["memory_bytes"] if size is None else parse_bytes(size) for size in sizes]
    left_bytes = [size - reserved_bytes(size, reserve) for size in whole_bytes]
    if min(left_bytes) < 0:
        raise ValueError(f"a reserve of {reserve!r} is more than a device has: {min(whole_bytes)} bytes")
    return tuple(
        Device(f"{prefix}:{i}", like, **{**sheet, "memory_bytes": size}) for i, size in enumerate(left_bytes)
    )


def _sheet(kind: str) -> dict[str, Any]:
    if kind not in _devices():
        raise ValueError(f"no datasheet of a device {kind!r}: known are {', '.join(known_kinds())}")
    return _devices()[kind]
