"""Where tiles lie, along one dimension at a time: plain numbers.

    input    |....before|==== core ====|after....|       a window is the core and its halo, cut off where the
                        p              q                 plane ends: there the model pads as it always does
    output              |== written ===|
                        p * rate / stride

A window begins on the model's grid (a multiple of its stride), so that each of its pixels meets the same
kernels as in the whole plane. What is written is what no pixel outside of the window can change.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """How far a model looks, along one dimension.

    Args:
        stride: if the input moves by so many pixels, the output moves by `rates`.
        rates: for each output.
        before, after: pixels that a part of the output needs before and after its own.
        known: a length that the model was run with.
        lengths: for each output, its length then.
    """

    stride: int
    rates: tuple[int, ...]
    before: int
    after: int
    known: int
    lengths: tuple[int, ...]

    def length(self, pixels: int) -> tuple[int, ...]:
        """The length of each output."""
        steps = (pixels - self.known) // self.stride
        return tuple([length + steps * rate for length, rate in zip(self.lengths, self.rates, strict=True)])


@dataclass(frozen=True)
class Span:
    """A tile along one dimension.

    Args:
        begin, end: its window in the input.
        written: for each output, where its part begins and ends.
        skipped: for each output, what of the window's own output lies before that part.
    """

    begin: int
    end: int
    written: tuple[tuple[int, int], ...]
    skipped: tuple[int, ...]


def spans(pixels: int, size: int, reach: Reach) -> list[Span]:
    """Tiles along one dimension; their parts of an output cover each of its pixels once."""
    size = rounded_up(size, reach.stride)
    lengths = reach.length(pixels)
    found = []
    for p in range(0, pixels, size):
        q = min(p + size, pixels)
        begin, end = max(0, p - reach.before), min(pixels, q + reach.after)
        written = tuple(
            (
                min(p // reach.stride * rate, length),
                length if q == pixels else min(q // reach.stride * rate, length),
            )
            for rate, length in zip(reach.rates, lengths, strict=True)
        )
        starts = [begin // reach.stride * rate for rate in reach.rates]
        skipped = tuple(first - start for (first, _), start in zip(written, starts, strict=True))
        if any(first < last for first, last in written):
            found.append(Span(begin, end, written, skipped))
    return found


def rounded_up(value: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-value // step) * step


def ramp(spans_of_one: Sequence[Span], index: int, output: int, rate: int, stride: int) -> list[float]:
    """The weights of a window's output in a blend: they rise where it overlaps the window before."""
    span = spans_of_one[index]
    start = span.begin // stride * rate
    is_last = index == len(spans_of_one) - 1
    stop = span.written[output][1] if is_last else span.end // stride * rate
    weights = [1.0] * (stop - start)
    if index:
        overlap = max(0, spans_of_one[index - 1].end // stride * rate - start)
        for k in range(min(overlap, len(weights))):
            weights[k] *= (k + 1) / (overlap + 1)
    if not is_last:
        overlap = max(0, stop - spans_of_one[index + 1].begin // stride * rate)
        for k in range(min(overlap, len(weights))):
            weights[-1 - k] *= (k + 1) / (overlap + 1)
    return weights
