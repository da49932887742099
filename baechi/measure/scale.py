"""Seconds of what was not measured: from what the measured layers say of kernels and of estimates.

    seconds of a layer  ~  a * its kernels + b * its estimate

`a` is what a kernel takes however little it does, `b` how far the device is from its datasheet. They are
the numbers that leave the smallest sum of relative errors. In a sum of squares, or a ratio of sums, one
slow layer would decide.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.cost.roofline import Work
from baechi.records.datasheet import datasheet
from baechi.records.device import Device
from baechi.records.graph import LayerGraph

_ROUNDS = 100

Floats = npt.NDArray[np.float64]


def scale_others(graph: LayerGraph, measured: Collection[str], device: Device | None = None) -> None:
    """Put seconds on the nodes that were not measured."""
    for attribute, backward in (("forward_s", False), ("backward_s", True))[: 1 + graph.training]:
        known = [
            (*_guess(graph, name, backward, device), seconds)
            for name in measured
            if graph.costs(name).twin is None and (seconds := _seconds(graph, name, attribute, device))
        ]
        kernel_s, ratio = fit(known)
        for name in graph.placed():
            if name not in measured:
                kernels, guess_s = _guess(graph, name, backward, device)
                seconds = kernel_s * kernels + ratio * guess_s
                put_seconds(graph.nodes[name], attribute, seconds, device)


def put_seconds(data: dict[str, Any], attribute: str, seconds: float, device: Device | None) -> None:
    """Put seconds on a node."""
    if device is None:
        data[attribute] = seconds
    else:
        before = data.get(attribute)
        data[attribute] = {**(before if isinstance(before, dict) else {}), device.kind: seconds}


def fit(known: Collection[tuple[float, float, float]]) -> tuple[float, float]:
    """What explains measured seconds best, by the sum of relative errors."""
    rows = np.array([row for row in known if row[0] or row[1]], np.float64).reshape(-1, 3)
    if not len(rows):
        return 0.0, 1.0
    relative = rows[:, :2] / rows[:, 2:]  # times (a, b), it should be 1
    ways = [
        way
        for columns in ([0], [1], [0, 1])
        if (way := _least_errors(relative, columns)) is not None and min(way) >= 0
    ]
    # among equally good ones the first: what does little takes what a kernel takes
    best = min(ways, key=lambda way: round(_error(relative, way), 12))
    return float(best[0]), float(best[1])


def _least_errors(relative: Floats, columns: list[int]) -> Floats | None:
    """The factors of some columns that bring the rows closest to 1; the other columns count nothing.

    Iteratively reweighted least squares: each row weighs the inverse of its error (Weiszfeld's way).
    """
    chosen = relative[:, columns]
    if not chosen.any(axis=0).all():
        return None
    weights, found = np.ones(len(chosen)), np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        factors = np.linalg.lstsq(chosen * root[:, None], root, rcond=None)[0]
        weights = 1 / np.maximum(np.abs(chosen @ factors - 1), 1e-9)
    found[columns] = factors
    return found


def _error(relative: Floats, factors: Floats) -> float:
    return float(np.abs(relative @ factors - 1).sum())


def _seconds(graph: LayerGraph, name: str, attribute: str, device: Device | None) -> float:
    if device is None:
        return graph.amount(name, attribute)
    return graph.seconds(name, attribute, device.kind) if graph.nodes[name].get(attribute) else 0.0


def _guess(graph: LayerGraph, name: str, backward: bool, device: Device | None) -> tuple[float, float]:
    """The kernels of a node, and its estimated seconds."""
    known = device is not None and device.flops_per_s and device.bytes_per_s
    sheet = device if device is not None and known else _HOST
    work = Work.of(graph, name, backward=backward)
    return work.kernels, work.seconds(sheet, graph.costs(name).dtype)


_HOST = Device("this machine", **datasheet("CPU"))
