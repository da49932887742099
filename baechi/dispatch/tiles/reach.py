"""How far a model looks along each dimension of a plane: worked out from runs on small planes, never
guessed."""

from collections.abc import Sequence

import torch
from torch import nn

from baechi.dispatch.tiles.footprint import Footprints, halo_of, moved, period_of
from baechi.dispatch.tiles.grid import Reach, rounded_up
from baechi.dispatch.tiles.probe import Probe
from baechi.errors import FatalError

_FIRST = {1: 128, 2: 64, 3: 24}
"""Length of the first plane, by the number of dimensions; it is doubled until what is seen fits in it."""

_MOST_PIXELS = 64
_ACROSS = {1: 128, 2: 64, 3: 24}


def reach_along(probe: Probe, axis: int, halo: int | None, stride: int | None) -> Reach:
    """How far a model looks along a dimension."""
    whole = probe.extents[axis]
    length = min(whole, _FIRST[len(probe.dims)])
    while True:
        found = _tried(probe, axis, length, stride)
        if found is not None:
            reach, footprints = found
            _check_edges(probe, axis, length, reach, footprints)
            if halo is not None:
                side = rounded_up(halo, reach.stride)
                reach = Reach(reach.stride, reach.rates, side, side, reach.known, reach.lengths)
            return _on_grid_of(probe, axis, reach, whole)
        if length == whole or length >= 16 * _FIRST[len(probe.dims)]:
            break
        length = min(whole, 2 * length)
    if halo is None:
        raise FatalError(_refusal(probe, axis, length))
    return _said(probe, axis, halo, stride or 1)


def undivided(probe: Probe, axis: int) -> Reach:
    """Along a dimension that is no longer than a tile nothing is cut, however far the model looks."""
    whole = probe.extents[axis]
    outputs = probe.run([0] * len(probe.dims), _lengths(probe, axis, whole))
    sizes = tuple([output.shape[probe.dims[axis]] for output in outputs])
    return Reach(whole, sizes, 0, 0, whole, sizes)


def _lengths(probe: Probe, axis: int, length: int) -> list[int]:
    """Of a plane that is long in one dimension only."""
    lengths = [min(extent, _ACROSS[len(probe.dims)]) for extent in probe.extents]
    lengths[axis] = length
    return lengths


def _tried(probe: Probe, axis: int, length: int, stride: int | None) -> tuple[Reach, list[Footprints]] | None:
    """The reach as a plane of this length shows it; None if that is too short."""
    count = min(_MOST_PIXELS, max(2, length // 4))
    middle = range((length - count) // 2, (length - count) // 2 + count)
    ends = [middle[0], middle[-1]]
    outputs, sizes = probe.footprints(axis, _lengths(probe, axis, length), ends)
    if any(_touches(footprints, size) for footprints, size in zip(outputs, sizes, strict=True)):
        return None  # two runs tell that; the others need not be made
    outputs, sizes = probe.footprints(axis, _lengths(probe, axis, length), list(middle))
    if any(_touches(footprints, size) for footprints, size in zip(outputs, sizes, strict=True)):
        return None
    period = period_of(outputs, count // 2)
    if period is None or (stride is not None and stride % period[0]):
        return None
    step, rates = period
    times = 1 if stride is None else stride // step
    step, rates = step * times, tuple([rate * times for rate in rates])
    before, after = halo_of(outputs, step, rates)
    return Reach(step, rates, before, after, length, tuple(sizes)), outputs


def _touches(footprints: Footprints, size: int) -> bool:
    return any(f is not None and (f[0] == 0 or f[1] == size - 1) for f in footprints.values())


def _check_edges(probe: Probe, axis: int, length: int, reach: Reach, middle: list[Footprints]) -> None:
    """Refuse a model that sees one edge of the plane from the other (circular padding)."""
    outputs, _ = probe.footprints(axis, _lengths(probe, axis, length), [0, length - 1])
    for footprints, known, rate in zip(outputs, middle, reach.rates, strict=True):
        first, last = footprints[0], footprints[length - 1]
        most, least = moved(known, 0, reach.stride, rate), moved(known, length - 1, reach.stride, rate)
        far = first is not None and (most is None or first[1] > most[1] + rate)
        if far or (last is not None and (least is None or last[0] < least[0] - rate)):
            raise FatalError(
                f"along dimension {probe.dims[axis]} the model sees one edge of the plane from the other "
                "(circular padding?): tiles would see their own edges there"
            )


def _on_grid_of(probe: Probe, axis: int, reach: Reach, whole: int) -> Reach:
    """The same reach, known for a length on the grid of the whole plane's: outputs round as its do."""
    known = reach.known - (reach.known - whole) % reach.stride
    if known == reach.known:
        return reach
    known = known if known > 0 else known + reach.stride
    outputs = probe.run([0] * len(probe.dims), _lengths(probe, axis, known))
    sizes = tuple([output.shape[probe.dims[axis]] for output in outputs])
    return Reach(reach.stride, reach.rates, reach.before, reach.after, known, sizes)


def _said(probe: Probe, axis: int, halo: int, stride: int) -> Reach:
    """The user's halo and stride, where the model's own are not to be seen; rates by sizes."""
    whole = probe.extents[axis]
    known = min(rounded_up(_FIRST[len(probe.dims)], stride), whole - whole % stride)
    known += (whole - known) % stride
    shorter = known - stride
    if shorter < 1:
        raise FatalError(f"a plane of {whole} pixels is too small for tiles with a stride of {stride}")
    long, short = [
        probe.run([0] * len(probe.dims), _lengths(probe, axis, length)) for length in (known, shorter)
    ]
    sizes = tuple([output.shape[probe.dims[axis]] for output in long])
    rates = tuple([size - one.shape[probe.dims[axis]] for size, one in zip(sizes, short, strict=True)])
    if any(rate < 1 for rate in rates):
        raise FatalError(f"an output does not grow along {probe.dims[axis]}, or not with {stride} pixels")
    side = rounded_up(halo, stride)
    return Reach(stride, rates, side, side, known, sizes)


_WHOLE = (
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.MultiheadAttention,
)


def _refusal(probe: Probe, axis: int, length: int) -> str:
    suspects = [
        f"{name} ({type(module).__name__})"
        for name, module in probe.model.named_modules()
        if isinstance(module, _WHOLE)
    ]
    may_be = f"; it may be {', '.join(suspects[:3])}" if suspects else ""
    return (
        f"along dimension {probe.dims[axis]} one pixel changes outputs to the edge of a plane of "
        f"{length}{may_be}. Tiles cannot equal the whole then; if you accept that, say a halo: "
        "HaloTiles(size, halo=32, stitch='blend')"
    )


def tolerance(dtype: torch.dtype) -> float:
    """How far two runs over other shapes may differ, as a part of the largest value."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return 0.0
    return 64 * float(torch.finfo(dtype).eps)


def check_seam(probe: Probe, reaches: Sequence[Reach], sizes: Sequence[int]) -> None:
    """Compare a tile from the middle with the same one in a larger window."""
    cores = []
    for extent, size, reach in zip(probe.extents, sizes, reaches, strict=True):
        size = min(rounded_up(size, reach.stride), rounded_up(_FIRST[len(sizes)], reach.stride))
        begin = extent // 2 // reach.stride * reach.stride
        cores.append((begin, min(begin + size, extent)))
    near = _core_of(probe, reaches, cores, 0)
    far = _core_of(probe, reaches, cores, 1)
    for index, (one, other) in enumerate(zip(near, far, strict=True)):
        if not _close(one, other):
            raise FatalError(
                f"output {index} of a tile is another in a larger window: the model depends on where a "
                "pixel lies or on the size of its input (coordinates, interpolation to a fixed size); tiles "
                "cannot equal the whole"
            )


def _core_of(
    probe: Probe, reaches: Sequence[Reach], cores: Sequence[tuple[int, int]], more: int
) -> list[torch.Tensor]:
    """The outputs of a core, computed in a window with more than the halo."""
    begins, lengths = [], []
    for (p, q), reach, extent in zip(cores, reaches, probe.extents, strict=True):
        extra = more * (3 * reach.stride + reach.before)
        begin = max(0, p - reach.before - extra)
        begins.append(begin)
        lengths.append(min(extent, q + reach.after + extra) - begin)
    found = []
    for index, output in enumerate(probe.run(begins, lengths)):
        for dim, (p, q), reach, begin in zip(probe.dims, cores, reaches, begins, strict=True):
            rate = reach.rates[index]
            first, last = [(pixel - begin) // reach.stride * rate for pixel in (p, q)]
            last = min(last, output.shape[dim])
            output = output.narrow(dim, first, max(0, last - first))
        found.append(output)
    return found


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.numel() or torch.equal(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    finite = one[one.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    bound = tolerance(one.dtype) * max(largest, 1e-30)
    return bool(torch.allclose(one, other, rtol=0.0, atol=bound, equal_nan=True))
