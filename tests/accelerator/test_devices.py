"""What holds on any accelerator: on the test accelerator, or on a real one where one is asked for:

BAECHI_DEVICE=cuda TORCH_CUDA_SANITIZER=1 python -m pytest --tier full tests/accelerator/test_devices.py

The sanitizer proves that streams are ordered, as the test accelerator's clocks do.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from operator import ge, gt
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OWN, Architecture, loss_of
from backend.real.test_step_clock import what
from matrix import in_turn_by_tier, named, pairs
from safetensors.torch import save_file
from same import Result, assert_same, identical
from same import step as step_on_cpu
from torch import nn

import baechi
from accelerator import ToyMachine
from accelerator.devices import cluster as cluster_of
from accelerator.where import HERE, IS_TOY, KIND, at, moved, names, undropped, why_not_here
from baechi import Cluster, LayerGraph, Plan, Timeline
from baechi.backend import backend_of
from baechi.backend.real.stopwatch import Stopwatch
from baechi.backend.sends import wait_for_readers
from baechi.backend.transfer import arrive, depart, transfer
from baechi.measure import links
from baechi.records.cluster import HOST
from baechi.records.device import RESERVE
from baechi.torchlib.tensors.storage import stamp

pytestmark = [
    pytest.mark.default_cases(1),
    pytest.mark.skipif(bool(why_not_here()), reason=why_not_here()),
]

NAMES = names()
LAST = NAMES[-1] if NAMES else ""
PARTS = tuple(f"{HERE}/{part}" for part in range(3))
two = pytest.mark.skipif(len(NAMES) < 2, reason="needs two devices")
real = pytest.mark.skipif(
    IS_TOY, reason="the test accelerator takes what it takes: only real kernels have a time"
)
ENDS = [
    PARTS[:2],
    (HERE, "cpu"),
    ("cpu", HERE),
    pytest.param(NAMES[:2], marks=two),
    pytest.param((f"{HERE}/1", LAST), marks=two),
]
ROUNDING = 1e-4
"""What single precision loses where kernels sum in another order."""

SIDE = 64 if IS_TOY else 4096
"""Of matrices whose product takes a while; the test accelerator makes it take one."""

LEAST_BYTES_PER_S = 0 if IS_TOY else 1e8

SMALL = [row for row in (*OWN, *HELD_IN) if row in OWN or row.name in ("t5", "gpt2", "resnet")]
FEW = [row for row in SMALL if row.name in ("branching", "cell_loop", "tied_autoencoder", "t5", "resnet")]
WAYS = [("late" if IS_TOY else "real", reorder) for reorder in (False, "host", "threads")]
WAYS += [("at once", "host")] if IS_TOY else []
PLACES = {"parts": PARTS[:2], "devices": NAMES[:2]}


def turns(*axes: Sequence[Any]) -> list[Any]:
    """Real cards run every combination; on the test accelerator each choice has its turn."""
    return in_turn_by_tier(*axes) if IS_TOY else [pytest.param(*row) for row in itertools.product(*axes)]


def places_of(where: str) -> tuple[str, ...]:
    """Two parts of a card, or two devices where there are two."""
    if len(PLACES[where]) < 2:
        pytest.skip("needs two devices")
    return PLACES[where]


def mode_of(row: Architecture, training: bool) -> str:
    return f"{row.name}-{'training' if training else 'inference'}"


SPLIT = [
    pytest.param(*way, row, training, marks=one.marks, id=f"{mode_of(row, training)}-{way[0]}-{way[1]}")
    for one in turns(SMALL, pairs(WAYS, (True, False)))
    for row, (way, training) in [one.values]
]
MODES = [  # of whole devices: those that `SPLIT` does not run
    pytest.param(*one.values, marks=one.marks, id=mode_of(*one.values)) for one in turns(SMALL, (False, True))
]
late_and_at_once = pytest.mark.parametrize(
    "begun", ["late", "at once"] if IS_TOY else ["real"], indirect=True
)


@pytest.fixture(autouse=True)
def begun(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """A new beginning: on the test accelerator, late or at once; its clocks must find no fault in a test."""
    machine: ToyMachine | None = request.getfixturevalue("toy") if IS_TOY else None
    late = getattr(request, "param", "late") == "late"

    def begin() -> None:
        if machine is not None:
            found = machine.faults()
            assert not found, "\n".join(found[:5])
            machine.restart(seed=1, late=late)

    begin()
    if IS_TOY:
        yield begin
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False
    yield begin
    torch.use_deterministic_algorithms(False)


class Towers(nn.Module):
    """Two layers beside each other, and one that joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.cat([self.left(x), self.right(x)], dim=1))
        return out


def towers() -> Towers:
    """The same every time."""
    torch.manual_seed(0)
    return Towers()


def batch() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(5, 6, generator=torch.Generator().manual_seed(0))}


def step(model: nn.Module, inputs: dict[str, Any], *, training: bool, seed: int = 3) -> Result:
    """A step, its result on the host."""
    result = step_on_cpu(model, inputs, training=training, seed=seed)
    grads = {name: None if grad is None else grad.cpu() for name, grad in result.grads.items()}
    buffers = {name: buffer.cpu() for name, buffer in result.buffers.items()}
    return Result([tensor.cpu() for tensor in result.outputs], grads, buffers)


def assert_near(reference: Result, result: Result) -> None:
    """Equal but for rounding: devices of two types have kernels of their own."""
    close = functools.partial(torch.testing.assert_close, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
    close(result.outputs, reference.outputs)
    close(result.buffers, reference.buffers)
    gradients = (Result([], one.grads, {}) for one in (reference, result))
    assert_same(*gradients, tolerance=ROUNDING)


@functools.cache
def reference_of(architecture: Architecture, training: bool, drops: bool) -> list[Result]:
    """Two steps of the plain model, whole on one device."""
    build = architecture.build if drops else undropped(architecture.build)
    plain = moved(build())
    return [step(plain, at(architecture.inputs()), training=training, seed=seed) for seed in (3, 4)]


@functools.cache
def graph_of(architecture: Architecture, training: bool) -> LayerGraph:
    model, inputs = architecture.build().train(training), architecture.inputs()
    return baechi.profile(model, inputs, cluster=cluster_of(HERE), training=training, source="estimate")


@functools.cache
def planned(architecture: Architecture, training: bool, places: tuple[str, ...]) -> Plan:
    return baechi.place(graph_of(architecture, training), cluster_of(*places), "random:1")


def distributed_as_plain(
    begin: Callable[[], None],
    mode: tuple[Architecture, bool],
    places: tuple[str, ...],
    reorder: Any,
    *,
    home: str = HERE,
    drops: bool = True,
    same: Callable[[Result, Result], None] | None = None,
) -> None:
    """Two steps of a distributed model have the numbers of the plain one on one device."""
    architecture, training = mode
    if IS_TOY and architecture.name == "torch_transformer" and not training:
        pytest.skip("torch takes nested tensors there, which need kernels of a device type's own")
    references = reference_of(architecture, training, drops)
    plan = planned(architecture, training, places)
    begin()
    build = architecture.build if drops else undropped(architecture.build)
    model = baechi.assign(build(), plan, reorder=reorder)
    same = same or functools.partial(assert_same, tolerance=ROUNDING)
    for reference, seed in zip(references, (3, 4), strict=True):
        same(reference, step(model, at(architecture.inputs(), home), training=training, seed=seed))


# --- what is there -------------------------------------------------------------------------------


def test_discover() -> None:
    """The visible devices have names, and memory less the reserve; parts share it; the CPU stands beside."""
    cluster = Cluster.discover()
    assert cluster.names == NAMES
    free_bytes, total_bytes = torch.accelerator.get_memory_info(0)
    assert 0 < free_bytes <= total_bytes
    assert 0 < cluster.devices[0].memory_bytes <= (1 - RESERVE) * total_bytes
    parts = Cluster.discover(split=2, cpu="1GiB")
    assert parts.names[:2] == PARTS[:2] and parts.names[-1] == "cpu"
    assert len(parts) == 2 * len(NAMES) + 1
    assert 2 * parts.devices[0].memory_bytes <= (1 - RESERVE) * total_bytes
    assert parts.device("cpu").memory_bytes == 2**30 and not parts.emulated


def test_links_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And found again; those with the host, within a card and between cards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = links(Cluster.discover(split=2), sizes=[4**5, 4**10], rounds=2, save=True)
    assert measured.links.keys() == set(permutations((*measured.names, HOST), 2))
    assert all(link.bytes_per_s > LEAST_BYTES_PER_S for link in measured.links.values())
    assert Cluster.discover(split=2).links == measured.links
    assert Cluster.discover().links != measured.links


def test_events_measure_what_runs() -> None:
    """Ten products take about ten times one."""
    watch, values = Stopwatch(torch.device(HERE)), torch.randn(SIDE, SIDE).to(HERE)
    torch.mm(values, values)
    seconds = []
    for count in (1, 10):
        watch.wait()
        start = watch.now()
        for _ in range(count):
            torch.mm(values, values)
        end = watch.now()
        watch.wait()
        seconds.append(watch.seconds(start, end))
    assert 5 < seconds[1] / seconds[0] < 20


def test_the_peak_is_the_allocators() -> None:
    """What a product takes is in the peak, and gone afterwards."""
    watch, values = Stopwatch(torch.device(HERE)), torch.randn(256, 256).to(HERE)
    torch.mm(values, values)  # libraries take what they keep
    watch.wait()
    watch.restart_peak()
    before_bytes = watch.live_bytes()
    torch.mm(values, values)
    assert watch.peak_bytes() - before_bytes >= values.numel() * 4
    assert watch.live_bytes() == before_bytes
    watch.restart_peak()
    assert watch.peak_bytes() == before_bytes


# --- streams -------------------------------------------------------------------------------------


def sent_then_written(ends: tuple[str, str], wait: Callable[..., None] = wait_for_readers) -> float:
    """The mean of a copy of ones that long kernels make, and that are zeroed right after they were sent."""
    backend = backend_of(cluster_of(*ends))
    source, target = ends
    side = SIDE // 2
    values = torch.ones(side, side)
    with backend.step():
        start = transfer(values, backend, source)
        with backend.at(source):
            made = start
            for _ in range(20):
                made = made @ start / side
        stamp(made, source, 1, renew=True)
        copied, way = depart(made, backend, target)
        wait(made, backend)
        with backend.at(source):
            made.zero_()
        arrived = arrive(copied, way)
        with backend.at(target):
            total = arrived.double().mean()
    return float(total)


@late_and_at_once
@pytest.mark.parametrize("ends", ENDS, ids="-".join)
def test_copies_come_after_what_makes_them(ends: tuple[str, str]) -> None:
    """A copy of what a long kernel is still making, and of what is written right after, is right."""
    assert sent_then_written(ends) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.skipif(not IS_TOY, reason="a real accelerator may be lucky")
@pytest.mark.parametrize("ends", [PARTS[:2], NAMES[:2]], ids="-".join)
def test_a_write_that_does_not_wait_is_found(toy: ToyMachine, ends: tuple[str, str]) -> None:
    """The test above can fail."""
    sent_then_written(ends, wait=lambda *_: None)
    faults = toy.faults()
    assert faults and "zero_" in faults[0] and "copy" in faults[0]
    toy.restart()


@pytest.mark.parametrize("ends", [PARTS[:2], pytest.param(NAMES[:2], marks=two)], ids="-".join)
def test_transfers_run_beside_compute(ends: tuple[str, str]) -> None:
    """On streams of their own: a copy does not wait for the kernels of other streams."""
    backend = backend_of(cluster_of(*ends))
    one, other = (backend.compute_stream(name) for name in ends)
    sending, receiving = backend.transfer_streams(*ends)
    assert one != other and not {sending, receiving} & {one, other}
    assert (sending == receiving) == ("/" in ends[0])
    assert [str(stream.device) for stream in (sending, receiving)] == [end.partition("/")[0] for end in ends]
    assert backend.transfer_streams(*ends) == (sending, receiving) != backend.transfer_streams(*ends[::-1])
    assert backend.compute_stream("cpu") is None


def test_the_callers_streams_and_device_stay() -> None:
    """Whoever computes on a stream, and on a device, of his own goes on there after a step."""
    plan = planned(FEW[0], True, PARTS)
    model = baechi.assign(FEW[0].build(), plan)
    own, before = torch.Stream(device=LAST), torch.accelerator.current_stream(LAST)
    torch.accelerator.set_stream(own)
    try:
        step_on_cpu(model, at(FEW[0].inputs()), training=True)
        assert torch.accelerator.current_stream(LAST) == own
        assert torch.accelerator.current_device_index() == torch.device(LAST).index
        if HERE != LAST:
            assert torch.accelerator.current_stream(HERE) not in plan_streams(plan)
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(0)


def plan_streams(plan: Plan) -> list[Any]:
    """The streams on which the devices of a plan compute."""
    backend = backend_of(plan.cluster)
    return [backend.compute_stream(place) for place in plan.cluster.names]


# --- models --------------------------------------------------------------------------------------


def test_one_device() -> None:
    """A model distributed onto one device lies there, computes what it computed there, and comes back."""
    model = baechi.distribute(towers(), batch(), cluster=Cluster.discover(), placer="single")
    (place,) = {str(weight.device) for weight in model.parameters()}
    assert place in NAMES
    reference = step(moved(towers(), place), at(batch(), place), training=True)
    assert_same(reference, step(model, at(batch(), place), training=True))
    assert {str(weight.device) for weight in baechi.restore(model).parameters()} == {"cpu"}


@pytest.mark.parametrize(
    ("begun", "reorder", "architecture", "training"),
    SPLIT,
    indirect=["begun"],
)
def test_a_split_card(
    begun: Callable[[], None], architecture: Architecture, training: bool, reorder: Any
) -> None:
    """Three parts of one card, a stream each: the numbers of the plain model there, random ones too."""
    distributed_as_plain(begun, (architecture, training), PARTS, reorder)


@two
@pytest.mark.parametrize(("architecture", "training"), MODES)
def test_two_devices(begun: Callable[[], None], architecture: Architecture, training: bool) -> None:
    """Peer copies between two devices; the inputs come from the host. Each device draws for itself."""
    distributed_as_plain(begun, (architecture, training), NAMES[:2], "host", home="cpu", drops=False)


@two
@pytest.mark.parametrize(("architecture", "reorder"), turns(FEW, [False, "threads"]), ids=named)
def test_devices_in_turn(begun: Callable[[], None], architecture: Architecture, reorder: Any) -> None:
    """All devices that are here, up to four, without reordering, and by threads."""
    distributed_as_plain(begun, (architecture, True), NAMES[:4], reorder, drops=False)


@two
@pytest.mark.parametrize(("architecture", "home"), turns(FEW, [HERE, LAST]), ids=named)
def test_inputs_lie_anywhere(begun: Callable[[], None], architecture: Architecture, home: str) -> None:
    """On a device that computes, and on one that does not, if there is one; parts beside a whole card."""
    places = (*PARTS[:2], NAMES[1])
    distributed_as_plain(begun, (architecture, True), places, "host", home=home, drops=False)


@pytest.mark.parametrize(("architecture", "reorder"), turns(FEW, [False, "host", "threads"]), ids=named)
def test_the_cpu_beside(begun: Callable[[], None], architecture: Architecture, reorder: Any) -> None:
    """Layers on the device and on the CPU."""
    distributed_as_plain(begun, (architecture, True), (HERE, "cpu"), reorder, drops=False, same=assert_near)


def test_the_cpu_by_hand() -> None:
    """A device map puts one layer on the CPU."""
    cluster = Cluster.discover(cpu="1GiB")
    model = baechi.distribute(
        towers(), batch(), cluster=cluster, device_map={"left": 0, "right": "cpu", "head": 0}
    )
    assert {name: str(weight.device) for name, weight in model.named_parameters() if "bias" in name} == {
        "left.bias": HERE, "right.bias": "cpu", "head.bias": HERE
    }  # fmt: skip
    reference = step(moved(towers()), at(batch()), training=True)
    assert_near(reference, step(model, batch(), training=True))


@pytest.mark.parametrize("places", [PARTS[:2], pytest.param(NAMES[:2], marks=two)], ids=["parts", "devices"])
def test_what_the_code_makes_on_the_host_meets_an_input(places: tuple[str, ...]) -> None:
    """`torch.ones(n).to(x.device)` stays on the host until it is used: here with an input in no part."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = towers()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ones = torch.ones(x.shape[0], 1).to(x.device)
            out: torch.Tensor = self.net(torch.cat([x[:, 1:], ones], dim=1))
            return out

    reference = step(moved(Padded()), at(batch()), training=True)
    where = {"net.left": 0, "net.right": 1, "net.head": 0}
    model = baechi.distribute(Padded(), batch(), cluster=cluster_of(*places), device_map=where)
    assert_same(reference, step(model, at(batch()), training=True), tolerance=ROUNDING)


@pytest.mark.parametrize("places", [PARTS, pytest.param(NAMES[:2], marks=two)], ids=["parts", "devices"])
def test_autocast(places: tuple[str, ...]) -> None:
    """Under autocast layers compute in its dtype, as on the whole card."""
    architecture = next(row for row in SMALL if row.name == "class_token")
    build = undropped(architecture.build)
    results = []
    for model in (moved(build()), baechi.assign(build(), planned(architecture, True, places))):
        with torch.autocast(KIND, torch.bfloat16):
            results.append(step(model, at(architecture.inputs()), training=True))
    assert results[0].outputs[0].dtype == torch.bfloat16
    assert_same(results[0], results[1], tolerance=1e-2)


# --- training ------------------------------------------------------------------------------------


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: dict[str, Any]) -> list[float]:
    """The losses of ten steps."""
    losses = []
    for _ in range(10):
        loss = loss_of(model(**at(inputs)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.full
@pytest.mark.parametrize(
    ("places", "made"),
    [(PARTS[:2], "before"), (PARTS[:2], "after"), pytest.param(NAMES[:2], "before", marks=two)],
    ids=["parts-before", "parts-after", "devices-before"],
)
def test_training_goes_on(begun: Callable[[], None], places: tuple[str, ...], made: str) -> None:
    """Ten steps of an optimizer come out as on the whole card; it was made before or after distributing."""

    architecture = next(row for row in SMALL if row.name == "gpt2")
    model = undropped(architecture.build)().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    plan = planned(architecture, True, places)
    baechi.distribute(model, plan=plan, optimizer=optimizer if made == "before" else "adam")
    if made == "after":
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    begun()
    losses = trained(model, optimizer, architecture.inputs())
    plain = moved(undropped(architecture.build)().train())
    reference = trained(plain, torch.optim.Adam(plain.parameters(), 1e-3), architecture.inputs())
    assert losses == pytest.approx(reference, rel=1e-3) and losses[-1] < 0.9 * losses[0]
    for (name, weight), other in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert float((weight.cpu() - other.cpu()).norm()) <= 1e-2 * float(other.norm()), name
    states = [(p.device, state["exp_avg"].device) for p, state in optimizer.state.items()]
    assert all(one == other for one, other in states) and len(states) == len(list(model.parameters()))


@pytest.mark.parametrize(("architecture", "where"), turns(FEW, list(PLACES)), ids=named)
def test_restored(architecture: Architecture, where: str) -> None:
    """A restored model lies on the CPU, or on the device that is asked for, and is a plain one again."""
    places = places_of(where)
    build = undropped(architecture.build)
    reference = step(build(), architecture.inputs(), training=True)
    model = baechi.assign(build(), planned(architecture, True, places))
    before = {name: weight.detach().cpu() for name, weight in model.state_dict().items()}
    tied = len(list(model.parameters()))
    baechi.restore(model)
    assert {str(weight.device) for weight in model.state_dict().values()} == {"cpu"}
    assert all(identical(before[name], weight) for name, weight in model.state_dict().items())
    assert len(list(model.parameters())) == tied
    assert_same(reference, step(model, architecture.inputs(), training=True))
    again = baechi.restore(baechi.assign(build(), planned(architecture, True, places)), HERE)
    assert {str(weight.device) for weight in again.state_dict().values()} == {HERE}
    assert_near(reference, step(again, at(architecture.inputs()), training=True))


def test_loaded(tmp_path: Path) -> None:
    """Weights saved by a distributed model are loaded into one that is distributed otherwise."""
    architecture = FEW[0]
    saved = baechi.assign(architecture.build(), planned(architecture, True, PARTS))
    with torch.no_grad():
        for weight in saved.parameters():
            weight.mul_(2)
    file = tmp_path / "weights.safetensors"
    save_file({name: weight.detach().cpu() for name, weight in saved.state_dict().items()}, file)
    loaded = baechi.assign(architecture.build(), planned(architecture, True, PARTS[:2]))
    baechi.load(loaded, file)
    results = [step(model, at(architecture.inputs()), training=True) for model in (saved, loaded)]
    assert_same(results[0], results[1])


# --- measuring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["layers", "auto"])
@pytest.mark.parametrize("home", ["cpu", HERE])
def test_profiled_on_the_device(home: str, source: Any) -> None:
    """Every layer has seconds by the device's kind; no more than one layer was there at a time."""
    torch.manual_seed(0)
    model = moved(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 16)), home)
    inputs, cluster = torch.ones(32, 512).to(home), Cluster.discover()
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    torch.accelerator.synchronize(HERE)
    before_bytes = torch.accelerator.memory_allocated(HERE)
    graph = baechi.profile(model, inputs, cluster=cluster, training=True, source=source, rounds=3)
    kind = cluster.devices[0].kind
    for key in ("forward_s", "backward_s"):
        assert all(graph.seconds(name, key, kind) > 0 for name in graph.placed())
    assert {str(weight.device) for weight in model.parameters()} == {home}
    assert all(identical(kept[name], weight) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.accelerator.memory_allocated(HERE) - before_bytes < (2**12 if IS_TOY else 2**26)


def test_profiled_by_hooks() -> None:
    """On the accelerator, from the CPU and back; a model that lies there stays. No tensor is left there."""
    cluster = cluster_of(HERE)
    before_bytes = torch.accelerator.memory_allocated(HERE)
    for home in ("cpu", HERE):
        model = moved(towers(), home)
        inputs = at(batch(), home)
        graph = baechi.profile(model, inputs, cluster=cluster, training=True, source="hooks", rounds=2)
        for name in ("left", "right", "head"):
            assert graph.nodes[name]["forward_s"].keys() == {cluster.devices[0].kind}
            assert graph.seconds(name, "forward_s", cluster.devices[0].kind) > 0
            assert graph.amount(name, "host_forward_s") > 0
        assert {str(weight.device) for weight in model.parameters()} == {home}
        del model, inputs
    left_bytes = torch.accelerator.memory_allocated(HERE) - before_bytes
    assert left_bytes <= (0 if IS_TOY else 2**26)  # cuBLAS keeps a workspace


def measured(plan: Plan, architecture: Architecture) -> Timeline:
    """A timed step."""
    model = baechi.assign(architecture.build(), plan)
    with plan.cluster:
        step_on_cpu(model, architecture.inputs(), training=True)
        return baechi.last_step(model)


@late_and_at_once
@pytest.mark.parametrize("places", [PARTS[:2], pytest.param(NAMES[:2], marks=two)], ids=["parts", "devices"])
def test_a_step_is_timed(places: tuple[str, ...]) -> None:
    """Predicted beside measured: the same layers on the same devices."""
    device_map = {"left": places[0], "right": places[1], "head": places[0]}
    model = baechi.distribute(towers(), batch(), cluster=cluster_of(*places), device_map=device_map)
    with baechi.plan_of(model).cluster:
        step(model, batch(), training=True)
        timeline = baechi.last_step(model)
    ran = {(s.layer, s.where, s.phase) for s in timeline.spans if s.kind == "compute" and s.layer}
    assert ran == {
        (layer, place, phase) for layer, place in device_map.items() for phase in ("forward", "backward")
    }
    sent = [span for span in timeline.spans if span.kind == "transfer"]
    assert f"{places[1]}>{places[0]}" in {span.where for span in sent}
    takes = ge if IS_TOY else gt  # whose kernels take less than the host between two of them
    assert all(takes(span.end_s, span.start_s) for span in sent) and timeline.makespan_s > 0
    cards = {place.partition("/")[0] for place in places}
    assert timeline.peak_bytes.keys() == cards and min(timeline.peak_bytes.values()) > 0


@pytest.mark.parametrize(
    ("name", "where"), turns(["branching", "siamese", "u_net", "buffers"], list(PLACES)), ids=named
)
def test_the_record_is_the_emulators(name: str, where: str) -> None:
    """Every layer, forward and backward, on its device; every transfer that the emulator counts."""
    places = places_of(where)
    architecture = next(row for row in OWN if row.name == name)
    plan = planned(architecture, True, places)
    here = measured(plan, architecture)
    virtual = Cluster.virtual(len(places))
    on = dict(zip(places, virtual.names, strict=True))
    there = measured(
        Plan(plan.graph, virtual, {layer: on[place] for layer, place in plan.device_of.items()}, plan.order),
        architecture,
    )
    spans = [(s.layer, on.get(s.where), s.phase) for s in here.spans if s.kind == "compute"]
    expected = [(layer, where, phase) for kind, layer, where, phase in what(there) if kind == "compute"]
    assert set(expected) <= set(spans)


@two
def test_a_plan_made_for_devices_elsewhere(tmp_path: Path) -> None:
    """Its i-th device of a kind is the i-th one here; from its file, by `assign` and by `distribute`."""
    elsewhere, here = Cluster.uniform(2), cluster_of(*NAMES[:2])
    graph = baechi.profile(towers(), batch(), cluster=elsewhere, training=False)
    Plan.from_device_map(graph, elsewhere, {"": 0, "right": 1}).save(tmp_path / "plan.json")
    expected = moved(towers().eval(), HERE)(at(batch()["x"], HERE)).cpu()
    for model in (
        baechi.assign(towers().eval(), tmp_path / "plan.json", cluster=here),
        baechi.distribute(towers().eval(), plan=str(tmp_path / "plan.json"), cluster=here),
    ):
        assert baechi.plan_of(model).device_of["right"] == NAMES[1]
        assert {str(weight.device) for weight in model.right.parameters()} == {NAMES[1]}  # type: ignore
        assert identical(model(**batch()), expected)


@pytest.mark.full
def test_what_fits_runs() -> None:
    """A step with nearly the largest batch that fits takes no more memory on any device than it has."""
    memory_bytes, slack_bytes = (2**22, 0) if IS_TOY else (2**28, 2**26)  # libraries keep a workspace
    places = NAMES[:2]
    cluster = cluster_of(*places).with_memory(dict.fromkeys(places, memory_bytes))

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)])

    fit = baechi.fits(model(), torch.ones(8, 64), cluster, training=True, optimizer="adam")
    assert fit and fit.largest_batch is not None and fit.largest_batch > 100
    # what kernels take beside their results was estimated, and is measured now
    inputs = torch.ones(fit.largest_batch * 15 // 16, 64)
    distributed = baechi.distribute(model(), inputs, cluster=cluster, training=True, optimizer="adam")
    optimizer = torch.optim.Adam(distributed.parameters())
    before_bytes = {place: torch.accelerator.memory_allocated(place) for place in places}
    for weight in distributed.parameters():
        before_bytes[str(weight.device)] -= weight.nbytes
    for place in places:
        torch.accelerator.reset_peak_memory_stats(place)
    for _ in range(2):
        distributed(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for place in places:
        taken_bytes = torch.accelerator.max_memory_allocated(place) - before_bytes[place]
        assert memory_bytes / 4 < taken_bytes <= memory_bytes + slack_bytes


@real
@pytest.mark.gpu
def test_predicted_steps_take_as_long() -> None:
    """A step of large products on one device takes about as long as its layers, measured alone, promise."""
    model = nn.Sequential(*[nn.Linear(SIDE, SIDE, bias=False) for _ in range(8)])
    inputs, cluster = torch.ones(SIDE, SIDE), Cluster.discover()
    graph = baechi.profile(model, inputs, cluster=cluster, training=True, source="layers", rounds=5)
    plan = baechi.place(graph, cluster, "single")
    predicted_s = baechi.simulate(plan).makespan_s
    baechi.assign(model, plan)
    given = at(inputs)
    with cluster:
        for _ in range(3):
            model(given).square().mean().backward()
        assert 1 / 3 < baechi.last_step(model).makespan_s / predicted_s < 3
