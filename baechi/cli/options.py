"""The options that several commands take, under one name each, and what their text means."""

from typing import Annotated, Any

import typer

from baechi.errors import BaechiError
from baechi.records.described.devices import MOST_DEVICES
from baechi.records.schema import MOST_MICROBATCHES

ClusterOption = Annotated[
    str,
    typer.Option(help="A file, a shipped name (see `baechi clusters`), or devices: 1xRTX-4090,2xRTX-3090."),
]
PlacerOption = Annotated[str, typer.Option(help="auto, single, m-topo, m-etf, m-sct, chain, ...")]
OptimizerOption = Annotated[str | None, typer.Option(help="Whose state counts in training, such as adam.")]
TrainingOption = Annotated[
    bool | None, typer.Option("--training/--inference", help="As the model stands unless given.")
]
_SOURCES = ("auto", "hooks", "layers", "estimate")


def _known_source(text: str) -> str:
    if text not in _SOURCES:
        raise typer.BadParameter(f"{text!r} is unknown: known are {', '.join(_SOURCES)}")
    return text


SourceOption = Annotated[
    str,
    typer.Option(help="Where times come from: auto, hooks, layers or estimate.", callback=_known_source),
]
EffortOption = Annotated[str, typer.Option(help="How long auto searches: 0, 1, 2, ... or max.")]
MemoryOption = Annotated[
    str | None, typer.Option("--max-memory", help="By device, name or index: 0=10GiB,1=20GiB; 0 forbids one.")
]
OutputsOption = Annotated[
    str | None,
    typer.Option(
        help="Outputs go to where inputs lie (inputs), or stay (device); as the graph says unless given."
    ),
]
MicrobatchesOption = Annotated[
    str | None, typer.Option(help="Split the batch in so many microbatches, all in flight at once; or auto.")
]
ReplicasOption = Annotated[
    str | None, typer.Option(help="So many replicas, each with microbatches of its own; or auto.")
]
RecomputeOption = Annotated[
    str | None, typer.Option(help="Modules that run again in backward: auto, or names such as encoder.layer.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

USUAL = "2xA100-80GB"

_MOST_EFFORT = 100


def effort_of(text: str) -> Any:
    """What `--effort` says.

    Args:
        text: what a person typed.

    Raises:
        BaechiError: neither a number nor `max`.
    """
    if text == "max":
        return text
    number = _whole(text, _MOST_EFFORT)
    if number is None:
        raise BaechiError(
            f"--effort {text}: it is a whole number of at least 0, or max; at most {_MOST_EFFORT}"
        )
    return number


def microbatches_of(text: str, option: str = "--microbatches") -> list[int] | None:
    """What `--microbatches` says: numbers to compare; None for `auto`.

    Args:
        text: what a person typed.
        option: another option that is read so.

    Raises:
        BaechiError: neither a number nor `auto`.
    """
    if text == "auto":
        return None
    number = _whole(text, MOST_MICROBATCHES)
    if not number:
        most = f"at most {MOST_MICROBATCHES:,}"
        raise BaechiError(f"{option} {text}: it is a whole number of at least 1, or auto; {most}")
    return [number]


def _whole(text: str, most: int) -> int | None:
    """The whole number that a text is, if it is one of at most so many."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        return None
    return int(text) if int(text) <= most else None


def recompute_of(text: str | None) -> str | list[str] | None:
    """What `--recompute` says: `"auto"`, or names.

    Args:
        text: what a person typed, names with commas between them.

    Raises:
        BaechiError: a name is empty.
    """
    if text is None or text == "auto":
        return text
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise BaechiError(f"--recompute {text!r}: it is auto, or names of modules with commas between")
    return names


def max_memory_of(text: str | None) -> dict[int | str, int | str] | None:
    """What `--max-memory` says.

    Args:
        text: what a person typed.

    Raises:
        BaechiError: a part is no device with its size, or a device is said twice.
    """
    if text is None:
        return None
    found: dict[int | str, int | str] = {}
    for part in text.split(","):
        device, equals, size = part.strip().partition("=")
        if not (device and equals and size):
            raise BaechiError(f"--max-memory {text}: it is devices with sizes, as in 0=10GiB,1=20GiB")
        number = _whole(device, MOST_DEVICES)
        key = device if number is None else number
        if key in found:
            raise BaechiError(f"--max-memory {text}: it says {device} twice")
        found[key] = size
    return found
