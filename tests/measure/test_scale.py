"""Seconds of what was not measured."""

import pytest

from baechi.measure.scale import fit


def test_a_device_as_its_datasheet_says_but_slower() -> None:
    """Both numbers are found, whatever one slow layer says."""
    kernels, guesses = (1, 1, 2, 4, 3), (1e-6, 5e-6, 20e-6, 3e-6, 100e-6)
    known = [(n, guess, 4e-6 * n + 1.5 * guess) for n, guess in zip(kernels, guesses, strict=True)]
    for more in ([], [(1, 2e-6, 1.0)]):
        kernel_s, ratio = fit([*known, *more])
        assert kernel_s == pytest.approx(4e-6, rel=1e-3) and ratio == pytest.approx(1.5, rel=1e-3)


def test_what_does_little() -> None:
    """Layers whose estimates are nothing tell what a kernel takes."""
    kernel_s, ratio = fit([(1, 1e-9, 10e-6), (2, 2e-9, 20e-6), (1, 1e-9, 10e-6)])
    assert kernel_s + ratio * 1e-9 == pytest.approx(10e-6, rel=1e-3)
    assert kernel_s >= 0 and ratio >= 0


def test_neither_is_negative() -> None:
    """A long layer with many kernels that takes less than its estimate."""
    kernel_s, ratio = fit([(1, 10e-6, 10e-6), (50, 12e-6, 9e-6), (1, 100e-6, 100e-6)])
    assert kernel_s >= 0 and ratio == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("known", [[], [(0, 0.0, 1.0)]])
def test_nothing_to_compare_with(known: list[tuple[float, float, float]]) -> None:
    """Then seconds are as estimated."""
    assert fit(known) == (0.0, 1.0)
