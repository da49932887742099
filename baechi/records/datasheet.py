"""What makers publish about their devices: memory, rates, usual link (`profiles/devices.json`)."""

from difflib import get_close_matches
from functools import cache
from typing import Any

from baechi.records import files
from baechi.records.device import Link

_NEAR = 3
"""So many kinds are suggested."""

_ALIKE = 0.75


@cache
def _devices() -> dict[str, dict[str, Any]]:
    return dict(files.read("devices", files.profiles_folder() / "devices.json")["devices"])


def known_kinds() -> tuple[str, ...]:
    """The kinds of device that have a datasheet, sorted."""
    return tuple(sorted(_devices()))


def datasheet(kind: str) -> dict[str, Any]:
    """The published figures of a device."""
    sheet = _sheet(kind)
    return {key: sheet[key] for key in ("memory_bytes", "bytes_per_s", "flops_per_s")}


def usual_link(kind: str) -> Link:
    """The link by which devices of this kind are usually joined, one direction."""
    return Link(**_sheet(kind)["link"])


def known_kind(text: str) -> str:
    """The kind that a text means: capitals, blanks and dashes do not matter."""
    return next((kind for kind in known_kinds() if _letters(kind) == _letters(text)), text)


def near_kinds(text: str) -> list[str]:
    """The kinds whose name begins like a text, or is spelled nearly so; at most three."""
    letters, kinds = _letters(text), {_letters(kind): kind for kind in known_kinds()}
    found = [kind for known, kind in kinds.items() if letters and letters in known]
    plainest = min([kind.count("-") for kind in found], default=0)  # not those with a bus in their name
    found = [kind for kind in found if kind.count("-") == plainest]
    return found[:_NEAR] or [kinds[known] for known in get_close_matches(letters, kinds, 1, _ALIKE)]


def _letters(text: str) -> str:
    return "".join([letter for letter in text.lower() if letter.isalnum()])


def _sheet(kind: str) -> dict[str, Any]:
    if kind not in _devices():
        near = near_kinds(kind)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known_kinds())}"
        raise ValueError(f"no datasheet of a device {kind!r}: {hint}")
    return _devices()[kind]
