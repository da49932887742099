"""What decides the end of a layer: kernels, and the host that issues them."""

import pytest

from baechi.capture.graph.late_kernels import late_kernels


@pytest.mark.parametrize(
    ("work", "corners"),
    [
        ([5], []),
        ([0, 0], []),
        ([1, 1, 1, 1], [[1.0, 0.25]]),  # after two kernels half is left: the straight way between the ends
        ([1, 1, 10, 1], [[0.3333, 0.9231], [0.6667, 0.8462], [1.0, 0.0769]]),
        ([10, 1, 1], [[1.0, 0.0833]]),
        ([0, 0, 5], [[1.0, 1.0]]),
    ],
)
def test_tail(work: list[int], corners: list[list[float]]) -> None:
    """Only kernels that some device and host let decide are told: the corners of what is left over what
    was issued."""
    assert late_kernels(work) == corners


def test_a_large_kernel_late() -> None:
    """The end of a layer, all kernels issued a second apart: by hand, kernel after kernel."""
    work = [1.0, 0.5, 6.0, 2.0, 0.1]
    ends_s = 0.0
    for number, takes_s in enumerate(work):
        ends_s = max(ends_s, float(number)) + takes_s
    least_s = max([part * 4 + share * sum(work) for part, share in [(0.0, 1.0), *late_kernels(work)]])
    assert least_s == pytest.approx(ends_s, rel=1e-3)
