"""How much of a layer's work remains on the device, by how much of it the host has issued.

    issued    |--1--|--2--|--3--|--4--|         the host issues one kernel after the other
    runs           1     2     [...3...][.4.]   a large one late keeps the device busy beyond the last

For each kernel, the layer cannot end before that kernel was issued and all from it on have run. Which
kernel decides depends on the speed of device and host. Only corners of the convex hull can decide.
"""

from collections.abc import Sequence


def late_kernels(work: Sequence[float]) -> list[list[float]]:
    """The kernels of a layer that may decide when it ends, the last one among them.

    Args:
        work: of each kernel, as they are issued; only how they relate matters.

    Returns:
        Of each of them: the part of the issuing that is over, from the first kernel to the last, and the
        part of the work that is left. Nothing of one kernel.
    """
    total, last = sum(work), len(work) - 1
    if last < 1 or not total:
        return []
    corners: list[tuple[float, float]] = []
    left = float(total)
    for number, amount in enumerate(work):
        point = (number / last, left / total)
        while corners and (corners[-1][1] <= point[1] or not _turns(corners[-2:], point)):
            corners.pop()
        corners.append(point)
        left -= amount
    return [[round(part, 4), round(share, 4)] for part, share in corners if part]


def _turns(corners: Sequence[tuple[float, float]], point: tuple[float, float]) -> bool:
    """Whether the path over two corners to a point turns down: then the second corner is on the hull."""
    if len(corners) < 2:
        return True
    (x0, y0), (x1, y1) = corners
    return (x1 - x0) * (point[1] - y0) < (y1 - y0) * (point[0] - x0)
