"""How a model's step is compiled: a program for each stage of its plan."""

from dataclasses import dataclass
from typing import Literal

ProgramBackend = Literal["inductor", "aot_eager"]

_BACKENDS = "inductor", "aot_eager"


@dataclass(frozen=True)
class Stages:
    """A step as programs: the model's code is captured once, and cut by the plan.

    Args:
        backend: what makes a program of a piece: `"inductor"` fuses kernels; `"aot_eager"` calls torch's own,
            with the numbers of the uncompiled model. An emulated cluster always runs the latter.
        limit: so many kinds of calls are captured: shapes, training or evaluation, with or without gradients.
            Further ones run as the code is written, which is said once.
        required: whether a model that cannot be captured raises; else it runs as its code is written, which
            is said once.
        mode: there are no modes of torch's compiler yet, such as CUDA graphs (`"reduce-overhead"`).
        dynamic: each shape has a graph of its own, so there are no dynamic shapes yet.

    Raises:
        ValueError: an unknown backend, a limit below 1, a mode, or dynamic shapes.
    """

    backend: ProgramBackend = "inductor"
    limit: int = 8
    required: bool = True
    mode: None = None
    dynamic: Literal[False] = False

    def __post_init__(self) -> None:
        if self.backend not in _BACKENDS:
            raise ValueError(f"backend is {self.backend!r}: it takes {' or '.join(map(repr, _BACKENDS))}")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"limit is {self.limit!r}: a whole number of at least 1")
        if self.mode is not None:
            raise ValueError(
                f"mode is {self.mode!r}: programs have none yet, no CUDA graphs and no tuning: leave it out"
            )
        if self.dynamic is not False:
            raise ValueError(
                f"dynamic is {self.dynamic!r}: each shape has a graph of its own: pad inputs to few shapes, "
                "and give limit= as many kinds of calls as there are"
            )
