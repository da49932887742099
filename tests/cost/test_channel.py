"""The queue rule of transfers."""

from hypothesis import given
from hypothesis import strategies as st

from baechi.cost.channel import Channels
from baechi.records import Cluster

HOST = 3
bookings = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 9), st.integers(0, 5)), max_size=12
)


def channels(reception: str) -> Channels:
    return Channels(Cluster.uniform(3, reception=reception))  # type: ignore[arg-type]


def test_serial_reception() -> None:
    """A device receives one transfer at a time, from whomever; another device is not concerned."""
    queue = channels("serial")
    assert queue.book(0, 1, 2.0, 3.0) == (2.0, 5.0)
    assert queue.book(2, 1, 0.0, 4.0) == (5.0, 9.0)
    assert queue.book(HOST, 1, 20.0, 1.0) == (20.0, 21.0)
    assert queue.book(1, 0, 0.0, 1.0) == (0.0, 1.0)


def test_free_reception() -> None:
    """Each ordered pair of devices has a queue of its own."""
    queue = channels("free")
    assert queue.book(0, 1, 0.0, 3.0) == (0.0, 3.0)
    assert queue.book(2, 1, 0.0, 3.0) == (0.0, 3.0)
    assert queue.book(1, 0, 0.0, 3.0) == (0.0, 3.0)
    assert queue.book(0, 1, 1.0, 3.0) == (3.0, 6.0)


@given(bookings, st.sampled_from(["serial", "free"]), st.integers(0, 2))
def test_preview(past: list[tuple[int, int, int, int]], reception: str, target: int) -> None:
    """What would happen is what happens: the preview books nothing and says when the last arrives."""
    queue = channels(reception)
    for source, to, ready_s, duration_s in past:
        queue.book(source, to, ready_s, duration_s)
    transfers = [(float(ready), source, float(lasts)) for source, _, ready, lasts in past]
    preview = queue.last_arrival_s(target, transfers)
    assert preview == queue.last_arrival_s(target, transfers)
    ends = [queue.book(source, target, ready, lasts)[1] for ready, source, lasts in transfers]
    assert preview == max(ends, default=0.0)
