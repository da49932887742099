"""What optimizers take of a device's memory. A new optimizer is a row of this table, and nothing else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from baechi.errors import RecordError


@dataclass(frozen=True, slots=True)
class OptimizerCosts:
    """Bytes of an optimizer for each byte of gradient (only trained parameters have a gradient).

    Args:
        state_bytes: what it keeps from step to step.
        update_bytes: temporary tensors of its step.
        with_option: the row that counts instead where the named option of a parameter group is set.
    """

    state_bytes: int = 0
    update_bytes: int = 0
    with_option: tuple[str, str] | None = None


OPTIMIZERS: dict[str, OptimizerCosts] = {
    "sgd": OptimizerCosts(with_option=("momentum", "momentum")),
    "momentum": OptimizerCosts(state_bytes=1),
    "adagrad": OptimizerCosts(state_bytes=1, update_bytes=2),
    "rmsprop": OptimizerCosts(state_bytes=1, update_bytes=1),
    "adadelta": OptimizerCosts(state_bytes=2, update_bytes=2),
    "adam": OptimizerCosts(state_bytes=2, update_bytes=1),
    "adamw": OptimizerCosts(state_bytes=2, update_bytes=1),
}
"""By the name of the optimizer's class, in lower case."""


def optimizer_costs(optimizer: str | None) -> OptimizerCosts:
    """The row of an optimizer."""
    if optimizer is None:
        return OptimizerCosts()
    name = optimizer.lower() if isinstance(optimizer, str) else optimizer
    if name not in OPTIMIZERS:
        known = ", ".join(repr(key) for key in (None, *OPTIMIZERS))
        raise RecordError(f"optimizer {optimizer!r} is unknown: known are {known}")
    return OPTIMIZERS[name]


def row_of(class_name: str, options: Iterable[Mapping[str, Any]]) -> str | None:
    """The name of the row for an optimizer that exists."""
    name = class_name.lower()
    if name not in OPTIMIZERS:
        return None
    other = OPTIMIZERS[name].with_option
    return other[1] if other is not None and any(group.get(other[0]) for group in options) else name
