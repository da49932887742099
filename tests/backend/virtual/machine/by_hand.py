"""Emulated clusters with round numbers, driven by hand.

A float takes a second to be read or written on a device, and a second to travel over a link, so
every clock is a small number that a person can work out, and exact.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from baechi.backend import backend_of
from baechi.backend.virtual.current import at_work
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.backend.virtual.machine.streams import Stream
from baechi.records import Cluster, Device, Link

FLOAT_BYTES = 4
FLOATS_PER_S = float(FLOAT_BYTES)  # in bytes: a float a second

Row = tuple[str, str, float, float]


def cluster_of(
    n: int = 2,
    *,
    memory_bytes: int = 10**6,
    latency_s: float = 0.0,
    launch_s: float = 0.0,
    reception: str = "serial",
) -> Cluster:
    rates = {"flops_per_s": {"float32": 1e12}, "bytes_per_s": FLOATS_PER_S}
    return Cluster(
        tuple(Device(f"cpu:{k}", kind="x", memory_bytes=memory_bytes, **rates) for k in range(n)),  # type: ignore[arg-type]
        link=Link(latency_s=latency_s, bytes_per_s=FLOATS_PER_S),
        reception=reception,  # type: ignore[arg-type]
        emulated=True,
        launch_s=launch_s,
    )


DEVICES = backend_of(cluster_of(3))


def emulator() -> Emulator:
    found = at_work()
    assert found is not None
    return found


def host_s() -> float:
    """The host's clock."""
    return emulator().thread.host.now_s


def zeros(place: str, n: int = 1, *, requires_grad: bool = False) -> torch.Tensor:
    """n floats on a device; they take n seconds to write."""
    return torch.zeros(n, device=place, requires_grad=requires_grad)


def current(place: str) -> Stream:
    """The stream on which this thread computes on a device now."""
    stream = DEVICES.compute_stream(place)
    assert isinstance(stream, Stream)
    return stream


def compute(place: str) -> Stream:
    """The stream on which a device computes unless it is told otherwise."""
    streams = emulator().thread.streams
    before = dict(streams)
    streams.clear()
    stream = current(place)
    streams.update(before)
    return stream


def side(place: str, name: str = "side") -> Stream:
    """One more stream of a device."""
    return Stream(emulator().index[place], f"{place}/{name}")


@contextmanager
def on(stream: Stream) -> Iterator[Stream]:
    """This thread computes on a stream."""
    streams = emulator().thread.streams
    before = streams.get(stream.device)
    streams[stream.device] = stream
    try:
        yield stream
    finally:
        del streams[stream.device]
        if before is not None:
            streams[stream.device] = before


def after(later: Stream, earlier: Stream) -> None:
    """What is put on the one stream comes after all that is on the other now."""
    DEVICES.wait(later, DEVICES.record(earlier))


def copy(tensor: torch.Tensor, target: str, *, ordered: bool = True) -> torch.Tensor:
    """A copy on the streams beside computing, held for them; only `ordered` waits on both sides."""
    source = DEVICES.place_of(tensor)
    tx, rx = DEVICES.transfer_streams(source, target)
    if ordered:
        after(tx, current(source))
    copied = DEVICES.copy(tensor, target, (tx, rx))
    DEVICES.use(tensor, tx)
    DEVICES.use(copied, current(target))
    if ordered:
        after(current(target), rx)
    return copied


def rows() -> list[Row]:
    """What ran, by its start: operator, where, from, to. The host waits for all of it."""
    spans = emulator().timeline(by_operator=True).spans
    return [(span.layer, span.where, span.start_s, span.end_s) for span in spans]


def row(name: str) -> Row:
    """The only thing of that name that ran."""
    (found,) = [row for row in rows() if row[0] == name]
    return found


def live(place: str = "cpu:0") -> int:
    """Floats that lie on a device now."""
    floats, rest = divmod(emulator().allocator.live_bytes[place], FLOAT_BYTES)
    assert not rest
    return floats


def peak(place: str = "cpu:0") -> int:
    """The most floats that ever lay on a device."""
    return emulator().allocator.peak_bytes[place] // FLOAT_BYTES
