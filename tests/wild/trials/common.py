"""What all trials need: seeds, inputs, double precision, and verdicts of errors."""

import random
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import baechi
from wild.specimen import Batch, Specimen
from wild.trials.rows import with_rows
from wild.verdict import Kind, Verdict

Report = Callable[[str], None]

Judge = Callable[[nn.Module, baechi.Inputs], Verdict]
"""From a model, of which only copies are trained, and a batch, what came out."""

_CURE = "with baechi.unsplit"
"""What an error of ours says that is no `BaechiError`, or the note that baechi adds to an error of torch."""


@dataclass
class Record:
    """What came out for one model, as it is kept.

    Args:
        library: the package, see `Specimen`.
        name: see `Specimen`.
        version: the library's version.
        layers: how many layers the graph of the last capture has.
        plain_s: how long one plain step in training and one in evaluation take.
        capture_s: how long both captures take.
        total_s: how long the whole trial takes.
        verdicts: kind and note, by mode and way.
    """

    library: str
    name: str
    version: str
    layers: int = 0
    plain_s: float = 0.0
    capture_s: float = 0.0
    total_s: float = 0.0
    verdicts: dict[str, tuple[str, str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)


def built(specimen: Specimen, record: Record, report: Report) -> tuple[nn.Module, Batch] | None:
    """The model and its batch; None if they cannot be built here, which the record says.

    Args:
        specimen: the model.
        record: is told if it cannot be built.
        report: is told what is about to be done.
    """
    report("building")
    try:
        return specimen.model(), specimen.batch()
    except Exception as error:  # others' code: whatever it raises, there is nothing to try
        record.verdicts["build"] = (Kind.PLAIN_FAILS, said(error))
        return None


def tried(specimen: Specimen, version: str, report: Report, ways: dict[str, tuple[int, Judge]]) -> Record:
    """Try a model in some ways.

    Args:
        specimen: the model.
        version: its library's version.
        report: is told what is about to be done.
        ways: by name, how many rows the batch has then, and what judges.
    """
    record, start_s = Record(specimen.package, specimen.name, version), time.perf_counter()
    made = built(specimen, record, report)
    for name, (rows, judge) in ways.items() if made is not None else ():
        report(name)
        try:
            batch = with_rows(inputs_of(made[1]), rows)
        except ValueError as error:
            verdict = Verdict(Kind.PLAIN_FAILS, said(error))
        else:
            verdict = judge(made[0], batch)
        record.verdicts[name] = (verdict.kind, verdict.note)
    record.total_s = round(time.perf_counter() - start_s, 2)
    return record


def seed() -> None:
    """The same random numbers from here on."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def inputs_of(batch: Batch) -> baechi.Inputs:
    """A batch as `baechi` takes it."""
    return baechi.Inputs(*batch) if isinstance(batch, tuple) else baechi.Inputs(**batch)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, not sparse."""
    return tensor.clone() if tensor.layout == torch.strided else tensor.to_dense()


def raised(error: Exception) -> Verdict:
    """An error raised on purpose is a refusal, but a race is what the library must keep from happening."""
    if isinstance(error, baechi.StreamRaceError):
        return Verdict(Kind.WRONG, said(error))
    told = any(_CURE in text for text in (str(error), *getattr(error, "__notes__", ())))
    if isinstance(error, baechi.BaechiError) or told:
        return Verdict(Kind.REFUSED, said(error))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return Verdict(Kind.ERROR, f"{said(error)} ({frame.filename.split('/')[-1]}:{frame.lineno} {frame.name})")


def said(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
