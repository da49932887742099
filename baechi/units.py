"""The one place where units are converted: inside the code there are bytes and seconds only."""

import re

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DIGITS = 30
_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: int | float | str) -> int:
    """Turn a size into bytes."""
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        factor = _FACTORS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            known = ", ".join(unit for unit in ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"))
            raise ValueError(f"{size!r} is no size: write a number and a unit ({known}), as in '16GiB'")
        number = match[1].replace("_", "")
        if len(number) > _DIGITS:
            raise ValueError(f"{number[:_DIGITS]}... is no size: it has more than {_DIGITS} digits")
        return int(float(number) * factor) if "." in number else int(number) * factor
    if isinstance(size, bool) or not 0 <= size < float("inf"):
        raise ValueError(f"{size!r} is no size: it must be a finite number of bytes, at least 0")
    return int(size)


def format_bytes(size_bytes: float) -> str:
    """Write bytes for a person: `1.50 GiB`, `320 B`."""
    unit = binary_unit(size_bytes)
    return f"{in_unit(size_bytes, unit)} {unit}"


def binary_unit(size_bytes: float) -> str:
    """The binary unit in which a size is a number that a person reads easily."""
    fitting = [unit for unit in _BINARY if abs(size_bytes) < 1024 * _FACTORS[unit.lower()]]
    return fitting[0] if fitting else _BINARY[-1]


def in_unit(size_bytes: float, unit: str) -> str:
    """Write bytes in a unit that stands elsewhere, in a heading: `0.03`."""
    return f"{size_bytes / _FACTORS[unit.lower()]:.{0 if unit == 'B' else 2}f}"


def format_seconds(seconds: float) -> str:
    """Write seconds for a person: `1.20 s`, `3.50 ms`, `12.0 µs`."""
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.1f} µs"


def format_share(part: float, whole: float) -> str:
    """Write a part of a whole for a person: `12 %`."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 layer`, `2 layers`."""
    return f"{number} {noun}{'s' * (number != 1)}"
