"""From footprints to a reach: which outputs change with each pixel, along one dimension. Plain numbers.

A footprint is the first and the last output that a pixel changes. Along a fully convolutional model
footprints repeat: those of pixels one stride on are those of before, moved by the rate.

    pixel        8      9      10     11     12           stride 2
    footprint    2..5   3..5   3..6   4..6   4..7         rate 1
"""

from collections.abc import Mapping, Sequence

Footprint = tuple[int, int] | None
"""First and last output that change; None if none does."""

Footprints = Mapping[int, Footprint]
"""By pixel."""


def period_of(outputs: Sequence[Footprints], most: int) -> tuple[int, tuple[int, ...]] | None:
    """The stride of a model, and the rate of each of its outputs."""
    pixels = sorted(outputs[0])
    for stride in range(1, min(most, len(pixels) // 2) + 1):
        rates = [_rate(footprints, pixels, stride) for footprints in outputs]
        if all(rates):
            return stride, tuple([rate for rate in rates if rate])
    return None


def _rate(footprints: Footprints, pixels: Sequence[int], stride: int) -> int | None:
    rates = set()
    for pixel in pixels[:-stride]:
        here, there = footprints[pixel], footprints[pixel + stride]
        if here is None or there is None:
            if here is not there:
                return None
            continue
        rates |= {there[0] - here[0], there[1] - here[1]}
    return rates.pop() if len(rates) == 1 and min(rates) > 0 else None


def halo_of(outputs: Sequence[Footprints], stride: int, rates: Sequence[int]) -> tuple[int, int]:
    """How many pixels a part of the output needs before and after its own.

    The part that belongs to the pixels p to q, both on the grid, is p * rate / stride to q * rate / stride.
    """
    before = after = 0
    for footprints, rate in zip(outputs, rates, strict=True):
        for pixel, footprint in footprints.items():
            if footprint is not None:
                first, last = footprint
                before = max(before, last // rate * stride - pixel)
                after = max(after, pixel + 1 - stride - first // rate * stride)
    return -(-before // stride) * stride, -(-after // stride) * stride


def moved(footprints: Footprints, pixel: int, stride: int, rate: int) -> Footprint:
    """The footprint that a pixel should have, by those of the middle of the plane."""
    for known, footprint in footprints.items():
        if (pixel - known) % stride == 0:
            steps = (pixel - known) // stride
            return None if footprint is None else (footprint[0] + steps * rate, footprint[1] + steps * rate)
    return None
