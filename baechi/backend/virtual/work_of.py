"""What an operation on an emulated cluster computes and moves."""

from typing import Any

import torch

from baechi.backend.virtual.machine.work import Work
from baechi.torchlib.operators.facts import Facts, bytes_of, flops_of

_NAMES = {
    getattr(torch, name): name
    for name in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
}


def work_of(func: Any, facts: Facts, call: Any, tensors: Any) -> Work:
    """What an operation computes and moves."""
    given, made = tensors
    args, kwargs, result = call
    dtype = next((_NAMES[t.dtype] for t in given or made if t.dtype in _NAMES), "float32")
    return Work(flops_of(func, args, kwargs, result), bytes_of(facts, given, made), dtype)
