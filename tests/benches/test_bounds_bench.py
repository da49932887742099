"""The bench of bounds runs each way dry, and says what bounds it."""

from benches.bounds import WAYS, Row, bounds


def test_bounds() -> None:
    """A small model is bound by the host, whatever runs it."""
    rows = list(bounds(quick=True))
    assert [row.way for row in rows] == list(WAYS)
    assert not any(row.why_not for row in rows)
    assert all(0 < row.host_s and row.bound in ("host", "waiting") for row in rows)


def test_what_bounds() -> None:
    """Who works for most of the step; neither where both wait."""
    assert Row("", "", 1.0, 0.9, 0.5).bound == "host"
    assert Row("", "", 1.0, 0.9, 0.95).bound == "device"
    assert Row("", "", 1.0, 0.5, 0.5).bound == "waiting"
