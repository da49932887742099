"""Where tiles lie: each pixel of an output is written once, within its window, for all small cases."""

from baechi.dispatch.tiles.footprint import halo_of, period_of
from baechi.dispatch.tiles.grid import Reach, ramp, rounded_up, spans


def test_each_pixel_is_written_once_from_within_its_window() -> None:
    for stride, rate, extra in ((1, 1, 0), (2, 1, 0), (1, 2, 1), (4, 2, -1)):
        for pixels in range(4, 21):
            for size in range(1, 21):
                for halo in (0, stride, 3 * stride):
                    known = rounded_up(8, stride) + pixels % stride
                    length = known // stride * rate + extra
                    reach = Reach(stride, (rate,), halo, halo, known, (length,))
                    _covers(pixels, size, reach)


def _covers(pixels: int, size: int, reach: Reach) -> None:
    found = spans(pixels, size, reach)
    (total,) = reach.length(pixels)
    written = [pixel for span in found for pixel in range(*span.written[0])]
    assert written == list(range(total))
    for span in found:
        assert 0 <= span.begin < span.end <= pixels
        assert span.begin % reach.stride == 0  # so that each pixel meets the same kernels
        assert span.skipped[0] >= 0


def test_blends_have_weights_above_zero_everywhere() -> None:
    for pixels in range(2, 21):
        for size in range(1, 21):
            for halo in range(4):
                reach = Reach(1, (1,), halo, halo, 8, (8,))
                found = spans(pixels, size, reach)
                for index, span in enumerate(found):
                    weights = ramp(found, index, 0, 1, 1)
                    assert len(weights) == span.end - span.begin
                    assert min(weights) > 0


def test_a_stride_and_a_halo_from_footprints() -> None:
    """The picture of `footprint`: a kernel of 5 with stride 2."""
    footprints = {pixel: ((pixel - 1) // 2, (pixel + 2) // 2) for pixel in range(8, 20)}
    assert period_of([footprints], 6) == (2, (1,))
    assert halo_of([footprints], 2, (1,)) == (2, 2)
    assert period_of([{pixel: (0, 9) for pixel in range(8)}], 4) is None
