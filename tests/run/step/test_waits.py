"""Every wait of the runtime is needed, and the emulated cluster tells when one is missing.

A tensor that travels is waited for, and said to be used, in six ways (`baechi.backend.transfer`);
`without` leaves out all waits of one kind, in forward or in backward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from architectures import HELD_IN, Architecture, loss_of
from matrix import pairs_by_tier
from torch import nn
from torch.utils.checkpoint import checkpoint

import baechi
from baechi import zoo
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.backend.virtual.machine.streams import Event, Stream
from baechi.errors import StreamRaceError
from baechi.run.step import loans
from baechi.run.step.step import Step

pytestmark = pytest.mark.default_cases(2)


class Exchange(nn.Module):
    """Two towers; each sends its first output to the other one, and then rectifies it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.rectify_left, self.rectify_right = nn.ReLU(inplace=True), nn.ReLU(inplace=True)
        self.from_left, self.from_right = nn.Tanh(), nn.Tanh()
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), self.right(x)
        from_left, from_right = self.from_left(left), self.from_right(right)
        left, right = self.rectify_left(left), self.rectify_right(right)
        out: torch.Tensor = self.head(torch.cat([left + from_right, right + from_left], dim=1))
        return out


class Residual(nn.Module):
    """A small convolutional network: in-place activations, residual branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True))
        self.first = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)
        )
        self.rectify = nn.ReLU(inplace=True)
        self.second, self.aside = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.rectify(x + self.first(x))
        x = self.rectify(self.second(x) + self.aside(x))
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


MODELS = {
    "exchange": Architecture("exchange", lambda: seeded(Exchange), lambda: {"x": noise(5, 6)}),
    "residual": Architecture("residual", lambda: seeded(Residual), lambda: {"x": noise(2, 3, 8, 8)}),
    "t5": next(a for a in HELD_IN if a.name == "t5"),
    "inception": Architecture(
        "inception",
        lambda: zoo.inception_v3("small")[0],
        lambda: {"images": zoo.inception_v3("small")[1][0]},
    ),
}


@cache
def graph_of(name: str, training: bool) -> baechi.LayerGraph:
    model, inputs = MODELS[name].build(), MODELS[name].inputs()
    return baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1), training=training)


def distributed(name: str, placer: str, training: bool) -> tuple[nn.Module, baechi.Cluster]:
    cluster = baechi.Cluster.virtual(3)
    plan = baechi.place(graph_of(name, training), cluster, placer)
    return baechi.assign(MODELS[name].build(), plan), cluster


def run(model: nn.Module, inputs: dict[str, Any], training: bool) -> None:
    """Two steps: one shows what a step leaves behind to the next."""
    torch.manual_seed(0)
    model.train(training)
    for _ in range(2):
        if training:
            loss_of(model(**inputs)).backward()
        else:
            with torch.no_grad():
                model(**inputs)


# --- leaving waits out

PRODUCER = "tx waits for the producer"
SOURCE = "the source is kept until tx is past it"
ARRIVAL = "the consumer waits for rx"
UPLOAD = "the consumer waits for rx from the host"
COPY = "the copy is kept until the consumer is past it"
READERS = "who writes in place waits for the transfers that read"


def wait_kind(waits: Stream, awaited: Stream) -> str:
    kinds = {("tx", "compute"): PRODUCER, ("compute", "rx"): ARRIVAL, ("compute", "tx"): READERS}
    kind = kinds[role(waits), role(awaited)]
    return UPLOAD if kind == ARRIVAL and awaited.name.startswith("host>") else kind


def role(stream: Stream) -> str:
    """`compute`, `tx` or `rx`."""
    return stream.name.rpartition("/")[2]


def in_phase(phase: str) -> bool:
    backward = torch._C._current_graph_task_id() != -1
    return backward == (phase == "backward")


@contextmanager
def without(kind: str, phase: str) -> Iterator[list[str]]:
    """Leave out every wait of a kind in a phase; gives the list of those that were left out."""
    record, wait, use = VirtualDevices.record, VirtualDevices.wait, VirtualDevices.use
    recorded: dict[int, tuple[Event, Stream]] = {}  # the event is held, so that its id stays its own
    left_out: list[str] = []

    def noting(self: VirtualDevices, stream: Stream | None) -> Event | None:
        event = record(self, stream)
        if event is not None and stream is not None:
            recorded[id(event)] = event, stream
        return event

    def waiting(self: VirtualDevices, stream: Stream | None, event: Event | None) -> None:
        if stream is not None and event is not None and id(event) in recorded:
            awaited = recorded[id(event)][1]
            if wait_kind(stream, awaited) == kind and in_phase(phase):
                left_out.append(f"{stream} after {awaited}")
                return
        wait(self, stream, event)

    def using(self: VirtualDevices, tensor: torch.Tensor, stream: Stream | None) -> None:
        if stream is not None and in_phase(phase) and kind == (SOURCE if role(stream) == "tx" else COPY):
            left_out.append(f"use on {stream}")
            return
        use(self, tensor, stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualDevices, "record", noting)
        patch.setattr(VirtualDevices, "wait", waiting)
        patch.setattr(VirtualDevices, "use", using)
        yield left_out


RACES = {
    PRODUCER: r"/tx reads memory that .*/compute may still be writing",
    SOURCE: r"memory was freed for stream \S+ while .*/tx may still be using it",
    ARRIVAL: r"/(compute|tx) (reads|writes) memory that .*[0-9]/rx may still be writing",
    UPLOAD: r"/compute (reads|writes) memory that .*host>cpu:./rx may still be writing",
    COPY: r"memory was freed for stream \S+/rx while .*/compute may still be using it",
    READERS: r"/compute writes memory that .*/tx may still be reading",
}
"""What each kind prevents."""


@pytest.mark.parametrize(
    ("name", "placer", "mode"),
    pairs_by_tier(list(MODELS), ["random:0", "random:1", "random:2", "m-topo"], ["training", "no_grad"]),
)
def test_nothing_is_missing(name: str, placer: str, mode: str) -> None:
    """As it is, the runtime has no race."""
    training = mode == "training"
    model, cluster = distributed(name, placer, training)
    with cluster:
        run(model, MODELS[name].inputs(), training)


KINDS = [
    (kind, phase)
    for kind in (PRODUCER, SOURCE, ARRIVAL, UPLOAD, COPY)
    for phase in ("forward", "backward", "no_grad")
    if (kind, phase) != (SOURCE, "backward")  # gradients are held until backward is over
]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "phase"), KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_each_kind_is_needed(name: str, kind: str, phase: str) -> None:
    """Without the waits of one kind there is a race, in every model, and the error says which."""
    # autograd holds most tensors that forward sends or receives; those that no layer saves show
    # that they have to be kept all the same. In backward, the gradient of an output is uploaded.
    training = phase != "no_grad"
    model, cluster = distributed(name, "random:1", training)
    with without(kind, phase) as left_out, pytest.raises(StreamRaceError, match=RACES[kind]), cluster:
        run(model, MODELS[name].inputs(), training)
    assert left_out


# --- writing in place what was sent: everybody who may


class Writer(nn.Module):
    """Its first layer's output is sent to another device, and written right after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.aside, self.last = nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.write(self.first(x))

    def write(self, h: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class LayerWrites(Writer):
    def __init__(self) -> None:
        super().__init__()
        self.rectify = nn.ReLU(inplace=True)

    def write(self, h: torch.Tensor) -> torch.Tensor:
        sent = self.aside(h)
        out: torch.Tensor = self.last(self.rectify(h)) + sent
        return out


class OperatorWrites(Writer):
    def write(self, h: torch.Tensor) -> torch.Tensor:
        sent = self.aside(h)
        h += 1
        out: torch.Tensor = self.last(h) + sent
        return out


class MethodWrites(Writer):
    def write(self, h: torch.Tensor) -> torch.Tensor:
        sent = self.aside(h)
        h[:, :2].mul_(2)
        out: torch.Tensor = self.last(h) + sent
        return out


class ItemWrites(Writer):
    def write(self, h: torch.Tensor) -> torch.Tensor:
        sent = self.aside(h)
        h[0] = 0
        out: torch.Tensor = self.last(h) + sent
        return out


class StatisticsWritten(Writer):
    """Batch normalization writes its statistics, which another layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def write(self, h: torch.Tensor) -> torch.Tensor:
        assert self.norm.running_mean is not None
        sent = self.aside(self.norm.running_mean)
        out: torch.Tensor = self.last(self.norm(h)) + sent
        return out


class Again(LayerWrites):
    """What wrote in forward writes again in backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return out


WRITERS = (LayerWrites, OperatorWrites, MethodWrites, ItemWrites, StatisticsWritten)


def aside(build: type[Writer]) -> tuple[nn.Module, baechi.Cluster]:
    """A writer whose layer aside lies on the second device, all else on the first."""
    model, cluster = seeded(build).train(), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"aside": 1, "": 0})
    return model, cluster


def write_twice(model: nn.Module, *, grad: bool) -> None:
    for _ in range(2):
        with torch.set_grad_enabled(grad):
            out = model(noise(5, 6))
        if grad:
            out.sum().backward()


@pytest.mark.parametrize("grad", [True, False], ids=["training", "no_grad"])
@pytest.mark.parametrize("build", [*WRITERS, Again])
def test_writers_wait(build: type[Writer], grad: bool) -> None:
    """Whoever writes in place waits: layers, operators, methods of views, items, buffers."""
    model, cluster = aside(build)
    with cluster:
        write_twice(model, grad=grad)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "no_grad"])
@pytest.mark.parametrize("build", WRITERS)
def test_writers_have_to_wait(build: type[Writer], grad: bool) -> None:
    """A writer that does not wait for the transfers that read is a race, in forward."""
    model, cluster = aside(build)
    with without(READERS, "forward"), pytest.raises(StreamRaceError, match=RACES[READERS]), cluster:
        write_twice(model, grad=grad)


def test_writers_have_to_wait_in_backward() -> None:
    """In backward layers write only where checkpointing runs them again; then they have to wait, too."""
    model, cluster = aside(Again)
    with without(READERS, "backward"), pytest.raises(StreamRaceError, match=RACES[READERS]), cluster:
        write_twice(model, grad=True)


class Doubles(nn.Module):
    """Writes in place in training only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) if self.training else x * 2


class WritesElsewhere(Writer):
    """A layer that wrote nothing when the model was captured, for inference, may lie anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = Doubles()

    def write(self, h: torch.Tensor) -> torch.Tensor:
        sent = self.aside(h)
        out: torch.Tensor = self.last(self.twice(h)) + sent
        return out


@pytest.mark.parametrize("grad", [True, False], ids=["training", "no_grad"])
def test_writing_back_has_to_wait(grad: bool) -> None:
    """What a layer wrote to its copy is written back once the transfers that read the original are over."""
    model, cluster = seeded(WritesElsewhere), baechi.Cluster.virtual(3)
    places = {"first": 0, "aside": 1, "twice": 2, "last": 0, "": 0}
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map=places, training=False)
    with cluster:
        write_twice(model, grad=grad)
    with without(READERS, "forward"), pytest.raises(StreamRaceError, match=RACES[READERS]), cluster:
        write_twice(model, grad=grad)


class Looks(nn.Module):
    """Reads its input, and returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> None:
        self.last(self.first(x))


def test_writing_inputs_back_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on one device that writes its input, of another device, waits for who reads that still."""
    cluster = baechi.Cluster.virtual(4)
    looks, writes = seeded(Looks), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))
    baechi.distribute(looks, noise(5, 6), cluster=cluster, device_map={"first": 0, "last": 2})
    baechi.distribute(writes, noise(5, 6), cluster=cluster, device_map={"": 3})

    def look_and_write() -> None:
        with torch.no_grad():
            x = noise(5, 6).to("cpu:1")
            looks(x)
            writes(x)

    with cluster:
        look_and_write()
    monkeypatch.setattr(loans, "wait_for_readers", lambda *_: None)
    monkeypatch.setattr(Step, "close", lambda _: None)  # which makes later code wait, too
    with pytest.raises(StreamRaceError, match="copy_ on stream cpu:1/compute writes"), cluster:
        look_and_write()


class Adds(nn.Module):
    """The gradient of a sum goes to another device, and is part of another gradient here."""

    def __init__(self) -> None:
        super().__init__()
        self.far, self.near, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.gradients: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        far, near = self.far(x), self.near(x)
        near.register_hook(lambda grad: self.gradients.append(grad.data_ptr()))
        twice = near * 2
        out: torch.Tensor = self.last(near + far) + twice
        return out


def test_gradients_that_travel_are_not_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that is sent is not what autograd adds other gradients to, in place."""
    # Autograd adds in place to what nobody else holds, with no wait for the transfer that reads it;
    # not so under a dispatch mode, so the emulation could not show it: this runs outside of `with`.
    sent: list[int] = []
    copy = VirtualDevices.copy

    def noting(
        self: VirtualDevices, tensor: torch.Tensor, place: str, streams: Any, *, gradient: bool = False
    ) -> torch.Tensor:
        if in_phase("backward"):
            sent.append(tensor.data_ptr())
        return copy(self, tensor, place, streams)

    model, cluster = seeded(Adds), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"far": 1, "": 0})
    monkeypatch.setattr(VirtualDevices, "copy", noting)
    gradients = model.gradients
    assert isinstance(gradients, list)
    gradients.clear()
    model(noise(5, 6)).pow(2).sum().backward()
    assert len(gradients) == 1 and len(sent) == 2  # the gradient of the output is uploaded
    assert not set(gradients) & set(sent)


# --- the host


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x))
        return out


def download_and_upload() -> tuple[float, float]:
    """When the output arrives on the host, and when it is sent to a device again."""
    model, cluster = seeded(Chain), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"first": 0, "last": 1})
    with cluster, torch.no_grad():
        model(noise(5, 6)).to("cpu:0")
        spans = baechi.last_step(model).spans
    (down,) = [span for span in spans if span.where == "cpu:1>host"]
    up = [span for span in spans if span.where == "host>cpu:0"]
    assert len(up) == 2
    return down.end_s, up[-1].start_s


def test_the_host_waits_for_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes home is there before the host uses it; left out, it would be sent on before it came."""
    # Memory of the host is not watched, so a missing wait is no StreamRaceError there: it shows in
    # the clocks only, where a value would leave the host before it arrived.
    arrives_s, leaves_s = download_and_upload()
    assert leaves_s >= arrives_s
    monkeypatch.setattr(Emulator, "wait_for", lambda *_: None)
    arrives_s, leaves_s = download_and_upload()
    assert leaves_s < arrives_s


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.first(x) + self.last(y)
        return out


def test_uploaded_copies_are_kept() -> None:
    """Where no output comes home, the host does not wait, and what it uploaded has to be kept."""
    # Where outputs come home the host has waited for all that went into them, uploads included.
    model, cluster = seeded(Pair), baechi.Cluster.virtual(1)
    baechi.distribute(model, (noise(5, 6), noise(5, 6)), cluster=cluster)

    def infer() -> None:
        with torch.no_grad():
            model(noise(5, 6).to("cpu:0"), noise(5, 6))

    with cluster:
        infer()
    with without(COPY, "no_grad") as left_out, pytest.raises(StreamRaceError, match=RACES[COPY]), cluster:
        infer()
    assert left_out == ["use on cpu:0/compute"]
