"""Calls of all kinds as programs: evaluation, other shapes, losses outside, hooks, and what is refused."""

import contextlib
import copy
import gc
import logging
import warnings
import weakref
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import SEED, assert_same_gradients
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import gelu

import baechi
from baechi.run import runtime_of

EXACT = baechi.Stages(backend="aot_eager")
AUTO = baechi.Stages(backend="aot_eager", required=False)
X, Y = noise(8, 6), noise(8, 6, seed=2)


class Net(nn.Module):
    """Three layers with a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.drop = nn.Dropout(0.3)

    def body(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(self.drop(gelu(self.b(self.a(x).relu()))))
        return result

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        made = self.body(x)
        return made if y is None else (made - y).square().mean()


WHERE = {"a": 0, "b": 1, "c": 1, "drop": 1}


def pair(
    kind: type[nn.Module] = Net, *, number: int = 1, how: Any = EXACT, inputs: Any = None, drops: bool = True
) -> tuple[nn.Module, nn.Module]:
    """A model as programs on two devices, and its plain copy."""
    model = seeded(kind)
    for module in model.modules():
        if isinstance(module, nn.Dropout) and not drops:
            module.p = 0.0
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    options: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    given = {"x": X, "y": Y} if inputs is None else inputs
    baechi.distribute(model, given, cluster=cluster, device_map=WHERE, compile=how, **options)
    return model, plain


def programs(model: nn.Module) -> int:
    """How many ran in the last step's call."""
    return runtime_of(model).counts.get("programs", 0)


def trained(model: nn.Module, *args: Tensor, **kwargs: Any) -> Tensor:
    """The loss of a step."""
    model.zero_grad()
    torch.manual_seed(SEED)
    loss: Tensor = model(*args, **kwargs)
    loss.backward()
    return loss.detach()


def assert_as(model: nn.Module, plain: nn.Module, *args: Tensor, **kwargs: Any) -> None:
    """A step of both gives the same, and ran as programs."""
    assert torch.allclose(trained(model, *args, **kwargs), trained(plain, *args, **kwargs), rtol=1e-13)
    assert_same_gradients(model, plain, 1e-13)
    assert programs(model)


def test_evaluation_and_no_gradients() -> None:
    model, plain = pair()
    with torch.no_grad():
        torch.manual_seed(1)
        found = model(X)
        torch.manual_seed(1)
        assert torch.equal(found, plain(X))
    for one in (model, plain):
        one.eval()
    with torch.inference_mode():
        assert torch.equal(model(X), plain(X))
    assert programs(model) == 2
    assert_as(model, plain, X, Y)


def test_rows_that_differ_from_step_to_step() -> None:
    model, plain = pair(number=4, drops=False)
    for rows in (8, 7, 3, 8):
        assert_as(model, plain, X[:rows], Y[:rows])
    for one in (model, plain):
        one.eval()
    with torch.no_grad():
        assert torch.allclose(model(X), plain(X), rtol=1e-13)


@pytest.mark.parametrize("number", [1, 4])
def test_a_loss_of_the_caller_and_an_input_with_a_gradient(number: int) -> None:
    model, plain = pair(number=number, inputs={"x": X}, drops=False)
    grads = []
    for one in (model, plain):
        given = X.clone().requires_grad_()
        (one(given * 2) - Y).abs().pow(1.5).sum().backward()
        grads.append(given.grad)
    assert torch.allclose(*grads, rtol=1e-13)
    assert_same_gradients(model, plain, 1e-13)
    assert programs(model)


class Several(Net):
    """Outputs that share memory, an input among them, and a layer that one output alone reads."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        first = self.a(x)
        return {"views": [first, first.view(-1)], "given": x, "apart": self.c(first), "scale": 2.0}


def test_gradients_of_some_outputs() -> None:
    """Weights that lead to none of them get no gradient, as without programs."""
    model, plain = pair(Several, inputs={"x": X})
    for key in ("views", "apart"):
        for one in (model, plain):
            one.zero_grad()
            result = one(X)
            assert result["given"] is X and result["scale"] == 2.0
            used = result[key][1] if key == "views" else result[key]
            used.square().sum().backward()
        assert_same_gradients(model, plain, 1e-13)


@pytest.mark.full
def test_frozen_weights_that_change() -> None:
    model, plain = pair()
    for frozen, thawed in (("a.weight", "b.weight"), ("b.weight", "a.weight")):
        for one in (model, plain):
            one.get_parameter(frozen).requires_grad_(False)
            one.get_parameter(thawed).requires_grad_(True)
        assert_as(model, plain, X, Y)


def test_hooks(caplog: pytest.LogCaptureFixture) -> None:
    """Those of weights run once; those of modules see values, so the code runs, and that is said once."""
    model, plain = pair(number=2, drops=False)
    seen: list[str] = []
    for one in (model, plain):
        one.get_parameter("a.weight").register_hook(lambda grad: (seen.append("weight"), grad * 2)[1])
    assert_as(model, plain, X, Y)
    assert seen == ["weight", "weight"]
    handle = model.get_submodule("b").register_full_backward_hook(lambda *_: seen.append("module"))
    with caplog.at_level(logging.WARNING, "baechi"):
        for _ in range(2):
            trained(model, X, Y)
    assert "module" in seen and not programs(model)
    assert sum("hooks on modules" in record.message for record in caplog.records) == 1
    handle.remove()
    assert_as(model, plain, X, Y)


class Planes(nn.Module):
    """Images with channels last: a kernel of group norms takes gradients that lie as its input does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(2, 2, 1)
        self.rows, self.planes = nn.Linear(64, 6), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        made = self.b(self.a(x))
        rows, planes, (first, second) = self.rows(made.flatten(1)), self.planes(made), made.chunk(2, 1)
        return {"rows": rows, "planes": planes, "first": first.tanh(), "second": self.c(second)}


def test_gradients_of_some_outputs_lie_as_those_of_all() -> None:
    images, where = noise(3, 2, 4, 4).contiguous(memory_format=torch.channels_last), {"a": 0, "b": 0, "": 1}
    model = seeded(Planes)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    baechi.distribute(model, images, cluster=cluster, device_map=where, compile=EXACT)
    for key in ("rows", "planes", "first", "second"):
        for one in (model, plain):
            one.zero_grad()
            found = one(images)[key]
            (found * noise(*found.shape, seed=3)).sum().backward()
        assert_same_gradients(model, plain, 1e-13)
        assert programs(model)


class Notes(Net):
    """Code that notes a number of the call, and does not read what was there."""

    rows = 0

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        self.rows = len(x)
        return super().forward(x, y) * self.rows


@pytest.mark.full
def test_a_number_is_noted_at_each_call() -> None:
    """It is a constant of the graph; a counter is not (`refused.py`)."""
    model, plain = pair(Notes, drops=False)
    for rows in (8, 6, 8):
        assert_as(model, plain, X[:rows], Y[:rows])
        assert model.rows == plain.rows == rows


class Warns(Net):
    """Code that warns at each call."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        warnings.warn("it is so", stacklevel=2)
        return super().forward(x, y)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:it is so")
def test_warnings_are_left_out() -> None:
    model, plain = pair(Warns, drops=False)
    assert_as(model, plain, X, Y)


class Once(Net):
    """Code whose first microbatch is another one."""

    is_first = True

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        scale, self.is_first = (3.0 if self.is_first else 1.0), False
        return super().forward(x, y) * scale


@pytest.mark.full
def test_a_flag_is_set_for_the_microbatches_after() -> None:
    model, plain = pair(Once, number=4, drops=False)
    model.is_first = plain.is_first = True
    expected = sum(plain(x, y).detach() / 4 for x, y in zip(X.chunk(4), Y.chunk(4), strict=True))
    assert torch.allclose(trained(model, X, Y), expected, rtol=1e-13)
    assert programs(model) and not model.is_first


@pytest.mark.full
def test_more_kinds_of_calls_than_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    model, plain = pair(how=baechi.Stages(backend="aot_eager", limit=2), drops=False)
    with caplog.at_level(logging.WARNING, "baechi"):
        for rows in (8, 7, 6, 5):
            assert torch.equal(trained(model, X[:rows], Y[:rows]), trained(plain, X[:rows], Y[:rows]))
    assert sum("2 kinds of calls" in record.message for record in caplog.records) == 1
    assert_as(model, plain, X, Y)


def test_two_calls_before_a_backward_and_no_second_one() -> None:
    model, plain = pair()
    for one in (model, plain):
        torch.manual_seed(1)
        (one(X, Y) * 2 + one(X * 2, Y)).backward()
    assert_same_gradients(model, plain, 1e-13)
    loss = model(X, Y)
    loss.backward()
    with pytest.raises(RuntimeError, match="as programs a second time"):
        loss.backward()
    loss = model(X, Y)
    with torch.no_grad():
        model.get_parameter("c.weight").add_(1)
    with pytest.raises(baechi.BaechiError, match="written between"):
        loss.backward()


@pytest.mark.full
def test_autocast_and_copies() -> None:
    model, plain = pair()
    losses = []
    for one in (model, plain):
        torch.manual_seed(SEED)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses.append(one.float()(X.float(), Y.float()))
        losses[-1].backward()
    assert torch.equal(*losses)
    copied = copy.deepcopy(model.double())
    assert torch.equal(trained(copied, X, Y), trained(model, X, Y)) and programs(copied)
    baechi.restore(model)
    assert torch.equal(trained(model, X, Y), trained(copied, X, Y))


@pytest.mark.full
def test_inductor() -> None:
    """Its numbers are right; an emulated cluster shows aot_eager's."""
    for number, emulated in ((1, False), (4, False), (4, True)):
        model, plain = pair(number=number, how=baechi.Stages(), drops=False)
        cluster = runtime_of(model).plan.cluster
        with cluster if emulated else contextlib.nullcontext():
            found = trained(model, X, Y)
        assert torch.allclose(found, trained(plain, X, Y), rtol=1e-12)
        assert_same_gradients(model, plain, 1e-11)


def test_split_layers_are_refused() -> None:
    model = seeded(Net)
    cluster = baechi.Cluster.virtual(2)
    with pytest.raises(baechi.CompileError, match="split="):
        baechi.distribute(model, {"x": X, "y": Y}, cluster=cluster, split={"b": {"out": 2}}, compile=EXACT)


@pytest.mark.full
def test_inductor_draws_as_the_code() -> None:
    """A dropout drops what it drops without programs."""
    model, plain = pair(how=baechi.Stages())
    assert torch.allclose(trained(model, X, Y), trained(plain, X, Y), rtol=1e-12)
    assert_same_gradients(model, plain, 1e-11)


class Images(nn.Module):
    """Convolutions down and up again, with an embedding: strides and devices that kernels choose."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.Conv2d(4, 8, 3, padding=1, stride=2)
        self.drop, self.c = nn.Embedding(3, 2), nn.ConvTranspose2d(8, 1, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        words = self.drop(torch.arange(3, device=x.device)).sum()
        return self.c(self.b(self.a(x).relu()).relu() * words).square().mean()


@pytest.mark.full
def test_inductor_keeps_strides_and_devices() -> None:
    x = noise(8, 2, 8, 8)
    model, plain = pair(Images, how=baechi.Stages(), inputs={"x": x})
    assert torch.allclose(trained(model, x), trained(plain, x), rtol=1e-12)
    assert_same_gradients(model, plain, 1e-11)


def test_arguments() -> None:
    with pytest.raises(ValueError, match="'stages'"):
        pair(how="everything")
    with pytest.raises(ValueError, match="inductor"):
        baechi.Stages(backend="cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit"):
        baechi.Stages(limit=0)
    with pytest.raises(ValueError, match="CUDA graphs"):
        baechi.Stages(mode="reduce-overhead")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pad inputs"):
        baechi.Stages(dynamic=True)  # type: ignore[arg-type]


def test_it_is_said_how_long_compiling_took(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = pair(number=2)
    with caplog.at_level(logging.INFO, "baechi"):
        for _ in range(2):
            trained(model, X, Y)
    said = [record.message for record in caplog.records if "programs in" in record.message]
    assert len(said) == 1 and "aot_eager" in said[0]


@pytest.mark.parametrize("number", [1, 2])
def test_no_batch_outlives_its_step(number: int) -> None:
    """After backward nothing of ours holds what the call was given."""
    model, _ = pair(number=number)
    x, y = X.clone(), Y.clone()
    model(x, y).backward()
    assert programs(model)
    held = [weakref.ref(x), weakref.ref(y)]
    storages = [StorageWeakRef(x.untyped_storage()), StorageWeakRef(y.untyped_storage())]
    del x, y
    gc.collect()
    assert [one() for one in held] == [None, None]
    assert all(one.expired() for one in storages)
