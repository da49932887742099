"""Blocks that are compiled in place, by the user or by `distribute`, run compiled where they are layers."""

import copy
import pickle
import shutil
from typing import Any

import pytest
import torch
from order.interleaved import distribute, interleaved
from run.drop_in.compiled_blocks import OPERATORS, Block, Counting, step, tower
from run.launched import runtime_of
from same import identical
from torch import Tensor, nn

import baechi

pytestmark = pytest.mark.default_cases(2)

LAUNCHERS = [False, "host", "threads"]


def values() -> Tensor:
    return torch.linspace(-1, 1, 12).view(3, 4)


def same(ours: list[Tensor], plain: list[Tensor]) -> bool:
    return len(ours) == len(plain) and all(map(identical, ours, plain))


def on_two(model: nn.Module, reorder: Any = "host") -> nn.Module:
    """Blocks on one device and the other in turn; the layer beside them launches first: so others wait."""
    x, cluster = values(), baechi.Cluster.virtual(2)
    graph = baechi.profile(model, x, cluster=cluster, source="estimate")
    devices = {f"blocks.{number}": number % 2 for number in range(8)} | {"side": 0}
    return baechi.assign(model, interleaved(graph, cluster, devices, ("side",)), reorder=reorder)


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_equal_blocks_are_compiled_once(reorder: Any) -> None:
    """All operators of the block, none of ours; once for inputs that require gradients, once for others."""
    plain, model, backend = tower(), tower(), Counting()
    for each in (plain, model):
        for block in each.blocks:  # type: ignore[union-attr]
            block.compile(backend=backend)
    expected = step(plain, values())
    alone = list(backend.compiled)
    assert alone == [OPERATORS, OPERATORS]
    on_two(model, reorder)
    torch._dynamo.reset()
    backend.compiled.clear()
    for _ in range(3):
        backend.runs = 0
        assert same(step(model, values()), expected)
        assert backend.runs == 8
    assert backend.compiled == alone
    assert bool(runtime_of(model).counts.get("deferred")) == bool(reorder)


def test_distribute_compiles_repeated_blocks() -> None:
    """Each is one layer then. After `restore` they are as written; after an error, too."""
    plain, model, backend = tower(), tower(), Counting()
    x, options = values(), {"backend": backend}
    expected = step(plain, x)
    cluster = baechi.Cluster.virtual(2)
    with pytest.raises(ValueError, match="'m-nothing'"):
        baechi.distribute(model, x, cluster=cluster, placer="m-nothing", compile=options)
    with pytest.raises(baechi.PlacementError):
        tiny = baechi.Cluster.virtual(2, memory="100B")
        baechi.distribute(model, x, cluster=tiny, compile=options)
    assert same(step(model, x), expected) and not backend.runs
    baechi.distribute(model, x, cluster=cluster, placer="round-robin", compile=options)
    nodes = {node for node in baechi.plan_of(model).graph.placed() if "blocks" in node}
    assert nodes == {f"blocks.{number}" for number in range(8)}
    assert same(step(model, x), expected) and backend.runs == 8
    baechi.restore(model)
    assert same(step(model, x), expected) and backend.runs == 8


def test_distribute_compiles_a_model_on_one_device() -> None:
    """There are no wrappers then, and blocks run compiled all the same."""
    model, backend, x = tower(), Counting(), values()
    baechi.distribute(
        model, x, cluster=baechi.Cluster.virtual(2), placer="single", compile={"backend": backend}
    )
    model(x)
    assert backend.runs == 8
    model(x), baechi.restore(model)(x)
    assert backend.runs == 16


def test_what_compile_takes() -> None:
    with pytest.raises(ValueError, match=r"compile is 'blocks': it takes 'regions', 'stages'"):
        baechi.distribute(tower(), values(), cluster=baechi.Cluster.virtual(2), compile="blocks")  # type: ignore[arg-type]


def test_restored_blocks_are_compiled_as_before() -> None:
    """What the user compiled is compiled after `restore`, by the same call."""
    model, backend = tower(), Counting()
    model.blocks[1].compile(backend=backend)  # type: ignore[index, operator]
    on_two(model)
    model(values())
    baechi.restore(model)(values())
    assert backend.runs == 2 and backend.compiled == [OPERATORS]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_compute_with_their_own_weights(copied: Any) -> None:
    """As written: torch does not copy what is compiled in place."""
    model, backend, x = tower(), Counting(), values()
    model.blocks[1].compile(backend="eager")  # type: ignore[index, operator]
    on_two(model)
    before = step(model, x)
    other = copied(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(2)
    assert same(step(model, x), before) and not same(step(other, x), before)
    assert not backend.runs
    baechi.restore(other)(x)


def test_what_is_no_layer_runs_as_written(caplog: pytest.LogCaptureFixture) -> None:
    """A block that the user divides, or compiles too late: said once."""
    plain, model, backend, x = tower(), tower(), Counting(), values()
    model.blocks[0].compile(backend=backend)  # type: ignore[index, operator]
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, placer="round-robin", split_module_classes=Block)
    model.blocks[1].compile(backend=backend)  # type: ignore[index, operator]
    for _ in range(2):
        assert same(step(model, x), step(plain, x)) and not backend.runs
    said = [
        record.getMessage() for record in caplog.records if "runs as it was written" in record.getMessage()
    ]
    assert len(said) == 2 and "blocks.0;" in said[0] and "this Block;" in said[1]


def test_a_layer_is_compiled_later(caplog: pytest.LogCaptureFixture) -> None:
    """A block that was kept whole can be compiled after `distribute`."""
    plain, model, backend, x = tower(), tower(), Counting(), values()
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, placer="round-robin", no_split_module_classes=Block)
    model.blocks[1].compile(backend=backend)  # type: ignore[index, operator]
    assert same(step(model, x), step(plain, x))
    assert backend.runs == 1 and backend.compiled == [OPERATORS]
    assert "as it was written" not in caplog.text


class Shifted(nn.Module):
    """Blocks that are given an object, which keeps what each of them made."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Keeping(), Keeping(), Keeping()])

    def forward(self, x: Tensor) -> Tensor:
        kept = Kept()
        for block in self.blocks:
            x = block(x, kept)
        return x


class Kept:
    """As a key-value cache keeps tensors."""

    def __init__(self) -> None:
        self.made: list[Tensor] = []


class Keeping(Block):
    """A block that adds what the one before made."""

    def forward(self, x: Tensor, kept: Kept | None = None) -> Tensor:
        assert kept is not None
        if kept.made:
            x = x + kept.made[-1].relu()
        kept.made.append(x)
        return super().forward(x)


def test_blocks_that_reach_other_devices_run_as_written(caplog: pytest.LogCaptureFixture) -> None:
    """Under the mode that brings what they reach the compiler gave up, for the rest of the process."""
    torch.manual_seed(0)
    plain = Shifted()
    model, backend, x = copy.deepcopy(plain), Counting(), values()
    options = {"backend": backend}
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, placer="round-robin", compile=options)
    for _ in range(2):
        for ours, theirs in zip(step(model, x), step(plain, x), strict=True):
            torch.testing.assert_close(ours, theirs)  # gradients of three uses are summed by device
    assert caplog.text.count("given tensors of other devices in an object") == 2
    assert backend.runs < 6


class Doubled(torch.autograd.Function):
    """Twice the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


class Own(nn.Module):
    """A block that calls a function of its own, which the runtime watches outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = Doubled.apply(self.a(x))  # type: ignore[no-untyped-call]
        return found.tanh()


def test_blocks_with_functions_of_their_own() -> None:
    """As many compilations and operators as on one device."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), Own(), Own())
    model, backend, x = copy.deepcopy(plain), Counting(), values()
    for each in (plain, model):
        for block in (each[1], each[2]):
            block.compile(backend=backend)
    expected, alone = step(plain, x), list(backend.compiled)
    distribute(model, x, {"0": 0, "1": 1, "2": 0}, ("0", "1", "2"))
    torch._dynamo.reset()
    backend.compiled.clear()
    assert same(step(model, x), expected)
    assert backend.compiled == alone and alone


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler, and g++ is not there")
@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_inductor(reorder: Any) -> None:
    """The numbers are those of the blocks as compiled on one device, to the bit."""
    torch._dynamo.reset()
    plain, model = tower(), tower()
    for each in (plain, model):
        for block in each.blocks:  # type: ignore[union-attr]
            block.compile(backend="inductor")
    on_two(model, reorder)
    for _ in range(2):
        assert same(step(model, values()), step(plain, values()))
