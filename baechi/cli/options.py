"""The options that several commands take, under one name each, and what their text means."""

from typing import Annotated, Any

import typer

from baechi.errors import BaechiError

ClusterOption = Annotated[
    str,
    typer.Option(help="A file, a shipped name (see `baechi clusters`), or devices: 1xRTX-4090,2xRTX-3090."),
]
PlacerOption = Annotated[str, typer.Option(help="auto, single, m-topo, m-etf, m-sct, chain, ...")]
OptimizerOption = Annotated[str | None, typer.Option(help="Whose state counts in training, such as adam.")]
TrainingOption = Annotated[
    bool | None, typer.Option("--training/--inference", help="As the model stands unless given.")
]
SourceOption = Annotated[str, typer.Option(help="Where times come from: auto, hooks, layers or estimate.")]
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
RecomputeOption = Annotated[
    str | None, typer.Option(help="Modules that run again in backward: auto, or names such as encoder.layer.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

USUAL = "2xA100-80GB"


def effort_of(text: str) -> Any:
    """What `--effort` says.

    Args:
        text: what a person typed.

    Raises:
        BaechiError: neither a number nor `max`.
    """
    if text == "max":
        return text
    if not text.isdigit():
        raise BaechiError(f"--effort {text}: it is a whole number of at least 0, or max")
    return int(text)


def microbatches_of(text: str) -> list[int] | None:
    """What `--microbatches` says: numbers to compare; None for `auto`.

    Args:
        text: what a person typed.

    Raises:
        BaechiError: neither a number nor `auto`.
    """
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise BaechiError(f"--microbatches {text}: it is a whole number of at least 1, or auto")
    return [int(text)]


def recompute_of(text: str | None) -> str | list[str] | None:
    """What `--recompute` says: `"auto"`, or names.

    Args:
        text: what a person typed, names with commas between them.
    """
    if text is None or text == "auto":
        return text
    return [name.strip() for name in text.split(",")]


def max_memory_of(text: str | None) -> dict[int | str, int | str] | None:
    """What `--max-memory` says.

    Args:
        text: what a person typed.

    Raises:
        BaechiError: a part is no device with its size.
    """
    if text is None:
        return None
    found: dict[int | str, int | str] = {}
    for part in text.split(","):
        device, equals, size = part.strip().partition("=")
        if not (device and equals and size):
            raise BaechiError(f"--max-memory {text}: it is devices with sizes, as in 0=10GiB,1=20GiB")
        found[int(device) if device.isdigit() else device] = size
    return found
