"""The same promises on real cards. Under the sanitizer, which proves that streams are ordered:

TORCH_CUDA_SANITIZER=1 python -m pytest -m gpu tests/backend/test_cuda.py
"""

from typing import Any

import pytest
import torch
from architectures import HELD_IN, OWN, Architecture
from same import Result, assert_same
from same import step as step_on_cpu
from torch import nn

import baechi
from baechi import Cluster, Plan, zoo
from baechi.backend import backend_of
from baechi.backend.discover import RESERVE_BYTES
from baechi.backend.marks import stamp
from baechi.backend.nest import map_tensors
from baechi.backend.stopwatch import Stopwatch
from baechi.backend.transfer import arrive, depart, transfer, wait_for_readers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
CARD = torch.device("cuda:0")
ROUNDING = 1e-4
"""What single precision loses where kernels sum in another order."""


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.cat([self.left(x), self.right(x)], dim=1))
        return out


def there(value: Any) -> Any:
    return map_tensors(lambda tensor: tensor.to(CARD), value)


def step(model: nn.Module, inputs: dict[str, Any], *, training: bool) -> Result:
    """A step on the card, its result on the host."""
    result = step_on_cpu(model, there(inputs), training=training)
    grads = {name: None if grad is None else grad.cpu() for name, grad in result.grads.items()}
    buffers = {name: buffer.cpu() for name, buffer in result.buffers.items()}
    return Result([tensor.cpu() for tensor in result.outputs], grads, buffers)


def planned(architecture: Architecture, cluster: Cluster, placer: str, training: bool) -> Plan:
    model, inputs = architecture.build().train(training), architecture.inputs()
    graph = baechi.profile(model, inputs, cluster=cluster, training=training, source="estimate")
    return baechi.place(graph, cluster, placer)


def distributed_as_plain(cluster: Cluster, architecture: Architecture, training: bool, reorder: Any) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    plain = architecture.build().to(CARD)
    model = baechi.assign(
        architecture.build(), planned(architecture, cluster, "random:1", training), reorder=reorder
    )
    for _ in range(2):
        reference = step(plain, architecture.inputs(), training=training)
        assert_same(reference, step(model, architecture.inputs(), training=training), tolerance=ROUNDING)


# --- what is there -------------------------------------------------------------------------------


def test_discover() -> None:
    """The visible cards have names, and memory less the reserve."""
    cluster = Cluster.discover()
    assert cluster.names == tuple(f"cuda:{index}" for index in range(torch.cuda.device_count()))
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    assert 0 < cluster.devices[0].memory_bytes <= total_bytes - RESERVE_BYTES
    parts = Cluster.discover(split=2, cpu="1GiB")
    assert parts.names[:2] == ("cuda:0/0", "cuda:0/1") and parts.names[-1] == "cpu"


def test_links_are_measured(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And found again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = baechi.measure.links(Cluster.discover(split=2), save=True)
    assert Cluster.discover(split=2).links == measured.links
    assert all(link.bytes_per_s > 1e8 for link in measured.links.values())


def test_events_measure_what_runs() -> None:
    """Ten products take about ten times one; the allocator's peak is that of the product."""
    watch, values = Stopwatch(CARD), torch.randn(4096, 4096, device=CARD)
    torch.mm(values, values)
    seconds = []
    for count in (1, 10):
        watch.wait()
        watch.restart_peak()
        before_bytes, start = watch.live_bytes(), watch.now()
        for _ in range(count):
            product = torch.mm(values, values)
        end = watch.now()
        watch.wait()
        seconds.append(watch.seconds(start, end))
    assert 5 < seconds[1] / seconds[0] < 20
    assert watch.peak_bytes() - before_bytes >= product.numel() * 4


# --- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("cuda:0/0", "cuda:0/1"), pytest.param(("cuda:0", "cuda:1"), marks=TWO)])
def test_copies_come_after_what_makes_them(names: tuple[str, str]) -> None:
    """A copy of what a long kernel is still making, and of what is written right after, is right."""
    backend = backend_of(Cluster(tuple(baechi.Device(name) for name in names)))
    source, target = names
    values = torch.ones(2048, 2048)
    with backend.step():
        start = transfer(values, backend, source)
        with backend.at(source):
            made = start
            for _ in range(20):
                made = made @ start / 2048
        stamp(made, source, 1, renew=True)
        copied, way = depart(made, backend, target)
        wait_for_readers(made, backend)
        with backend.at(source):
            made.zero_()
        arrived = arrive(copied, way)
        with backend.at(target):
            total = arrived.double().mean()
    assert float(total) == pytest.approx(1.0, rel=1e-3)


def test_transfers_run_beside_compute() -> None:
    """On the streams of a split card a copy does not wait for the kernels of other streams."""
    backend = backend_of(Cluster((baechi.Device("cuda:0/0"), baechi.Device("cuda:0/1"))))
    one, other = (backend.compute_stream(name) for name in backend.names)
    tx, rx = backend.transfer_streams(*backend.names)
    assert one != other and tx == rx and tx not in (one, other)
    assert backend.compute_stream("cpu") is None


# --- models --------------------------------------------------------------------------------------


def test_one_device() -> None:
    """A model distributed onto one card lies there, and computes what it computed there before."""
    torch.manual_seed(0)
    model, plain = Towers(), Towers()
    plain.load_state_dict(model.state_dict())
    inputs = {"x": torch.randn(5, 6, device="cuda:0")}
    baechi.distribute(model, {"x": inputs["x"].cpu()}, cluster=Cluster.discover(), placer="single")
    reference = step(plain.to("cuda:0"), inputs, training=True)
    assert_same(reference, step(model, inputs, training=True))
    assert {str(p.device) for p in baechi.restore(model).parameters()} == {"cpu"}


MODELS = [row for row in (*OWN, *HELD_IN) if row in OWN or row.name in ("t5", "gpt2", "resnet")]


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", MODELS, ids=lambda row: row.name)
def test_a_split_card(architecture: Architecture, training: bool, reorder: Any) -> None:
    """Three parts of one card, a stream each: the numbers of the plain model there."""
    names = [f"cuda:0/{part}" for part in range(3)]
    sheets = Cluster.uniform(3).devices
    parts = tuple(
        baechi.Device(n, d.kind, 2**32, 1.0, d.flops_per_s, d.bytes_per_s)
        for n, d in zip(names, sheets, strict=True)
    )
    distributed_as_plain(Cluster(parts), architecture, training, reorder)


@TWO
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", MODELS, ids=lambda row: row.name)
def test_two_cards(architecture: Architecture, training: bool) -> None:
    """Peer copies between two cards."""
    distributed_as_plain(
        Cluster.discover().with_memory({0: "4GiB", 1: "4GiB"}), architecture, training, "host"
    )


def test_the_cpu_beside() -> None:
    """Layers on the card and on the CPU."""
    torch.manual_seed(0)
    model, plain = Towers(), Towers()
    plain.load_state_dict(model.state_dict())
    inputs = {"x": torch.randn(5, 6)}
    cluster = Cluster.discover(cpu="1GiB")
    baechi.distribute(model, inputs, cluster=cluster, device_map={"left": 0, "right": "cpu", "head": 0})
    reference = step(plain.to(CARD), inputs, training=True)
    assert_same(reference, step(model, inputs, training=True), tolerance=ROUNDING)


def test_training_goes_on() -> None:
    """Ten steps of an optimizer on a split card come out as on the whole card."""
    torch.manual_seed(0)
    (model, inputs), (plain, _) = [zoo.MODELS["transformer"]("small") for _ in range(2)]
    plain.load_state_dict(model.state_dict())
    baechi.distribute(model, inputs, cluster=Cluster.discover(split=2), placer="random:0", optimizer="adam")
    losses = []
    for trained in (model, plain.to(CARD)):
        optimizer = torch.optim.Adam(trained.parameters(), 1e-3)
        given = there(inputs)
        for _ in range(10):
            loss = trained(*given).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


# --- measuring -----------------------------------------------------------------------------------


def test_profiled_on_the_card() -> None:
    """Every layer has seconds by the card's kind; no more than one layer was there at a time."""
    model = nn.Sequential(
        *[nn.Linear(2048, 2048 + 64 * index) for index in (0,)], nn.ReLU(), nn.Linear(2048, 16)
    )
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    cluster = Cluster.discover()
    graph = baechi.profile(model, torch.ones(32, 2048), cluster=cluster, training=True)
    kind = cluster.devices[0].kind
    assert all(graph.seconds(name, "forward_s", kind) > 0 for name in graph.placed())
    assert all(not weight.is_cuda for weight in model.parameters())
    assert torch.cuda.memory_allocated() - before_bytes < 2**26


def test_a_step_is_timed() -> None:
    """Predicted beside measured: the same layers on the same devices."""
    torch.manual_seed(0)
    model, cluster = Towers(), Cluster.discover(split=2)
    baechi.distribute(
        model, {"x": torch.randn(5, 6)}, cluster=cluster, device_map={"left": 0, "right": 1, "head": 0}
    )
    with cluster:
        step(model, {"x": torch.randn(5, 6)}, training=True)
        timeline = baechi.last_step(model)
    ran = {(s.layer, s.where) for s in timeline.spans if s.kind == "compute" and s.layer}
    assert ran == {("left", "cuda:0/0"), ("right", "cuda:0/1"), ("head", "cuda:0/0")}
    assert timeline.makespan_s > 0 and timeline.peak_bytes["cuda:0"] > 0
