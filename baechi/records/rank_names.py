"""How the devices of ranks are named: the rank, a slash, and the device as that process's torch names it."""

from collections.abc import Sequence

_RANK = "rank"


def name_of(rank: int, device: str) -> str:
    """The name of a rank's device."""
    return f"{_RANK}{rank}/{device}"


def rank_of(name: str) -> int | None:
    """The rank that has a device; None if its name tells of none."""
    rank, slash, _ = name.partition("/")
    number = rank.removeprefix(_RANK)
    return int(number) if slash and rank != number and number.isdecimal() else None


def are_of_ranks(names: Sequence[str]) -> bool:
    """Whether devices are those of ranks."""
    return bool(names) and all(rank_of(name) is not None for name in names)
