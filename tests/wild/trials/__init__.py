"""What is tried with a model: plain placements, microbatches, split layers, modules that run again."""

from collections.abc import Callable
from importlib import import_module

from wild.specimen import Specimen
from wild.trials.common import Record, Report

TRIALS = {"run": "plain", "pipeline": "pipeline", "whole": "whole", "split": "split", "recompute": "again"}
"""File by command."""


def trial_of(command: str) -> Callable[[Specimen, str, Report], Record]:
    """What tries a model.

    Args:
        command: the command that names it.
    """
    room = import_module(f"wild.trials.{TRIALS[command]}")
    attempt: Callable[[Specimen, str, Report], Record] = room.attempt
    return attempt
