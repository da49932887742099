"""Module and plan -> the same module, which runs the plan.

In:    a module and a `Plan`.
Out:   the same module: weights moved, each `forward` wrapped.
Start: `assign`, `calls`, then `step/step` and `launch/schedule`.
"""

from baechi.run.assign import (
    assign,
    last_step,
    plan_of,
    refuse_distributed,
    reordering,
    restore,
    runtime_of,
)
from baechi.run.checkpoints.whole import whole_state
from baechi.run.compiled_modules import blocks_compiled, tell_uncompiled
from baechi.run.first_call import plan_at_first_call
from baechi.run.load import load
from baechi.run.pipeline.unsplit import unsplit
from baechi.run.resume import resume
from baechi.run.save import save

__all__ = [
    "assign",
    "blocks_compiled",
    "last_step",
    "load",
    "plan_at_first_call",
    "plan_of",
    "refuse_distributed",
    "reordering",
    "restore",
    "resume",
    "runtime_of",
    "save",
    "tell_uncompiled",
    "unsplit",
    "whole_state",
]
