"""The call surface, streams of inputs, closing, and what threads take over from their caller."""

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dispatch.chunks_of import assert_close, mlp, small
from torch import nn

import baechi
from baechi import BaechiError, RoundRobin
from baechi.dispatch.schedulers.abstract import Left

X = torch.randn(10, 8, generator=torch.Generator().manual_seed(0))


def test_it_has_what_the_model_has() -> None:
    model = mlp()
    dispatched = baechi.dispatch(model, small())
    assert dispatched.model is model
    assert list(dispatched.parameters()) == list(model.parameters())
    assert dispatched.state_dict().keys() == model.state_dict().keys()
    dispatched.train()
    assert model.training
    assert_close(dispatched.forward(X), model(X))
    assert (
        repr(dispatched)
        == "Dispatched(Sequential, SimpleScheduler(cpu), Rows(size=None, dim=0), workers='inline')"
    )
    with pytest.raises(AttributeError, match="nothing"):
        _ = dispatched.nothing


def test_a_function_makes_the_model_at_the_first_call() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(nn.Linear(8, 4))
        return made[-1]

    dispatched = baechi.dispatch(make, small())
    assert not made
    before = torch.get_rng_state()
    dispatched(X)
    assert_close(dispatched(X), made[0](X))
    assert len(made) == 1
    assert torch.equal(torch.get_rng_state(), before)  # the caller's generator draws nothing
    with pytest.raises(TypeError, match="the factory made a int"):
        baechi.dispatch(lambda: 3, small())(X)  # type: ignore[arg-type,return-value]


def test_nothing_is_started_before_or_without_workers() -> None:
    threads = threading.active_count()
    with baechi.dispatch(mlp(), RoundRobin(2), workers="process"):
        assert not multiprocessing.active_children()
    baechi.dispatch(mlp(), RoundRobin(2))(X)
    assert not multiprocessing.active_children()
    assert threading.active_count() == threads


def test_closing_is_final() -> None:
    with baechi.dispatch(mlp(), small()) as dispatched:
        dispatched(X)
    with pytest.raises(BaechiError, match="is closed"):
        dispatched(X)


def test_one_call_at_a_time_and_one_model_for_a_scheduler() -> None:
    scheduler = small(2)
    dispatched = baechi.dispatch(mlp(), scheduler)
    stream = dispatched.stream([X, X])
    next(stream)
    with pytest.raises(BaechiError, match="while a call of it runs"):
        dispatched(X)
    stream.close()
    dispatched(X)
    scheduler.schedule(Left(2, 2))
    with pytest.raises(BaechiError, match="needs its own"):
        dispatched(X)


@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_a_stream_takes_inputs_as_there_is_room(workers: Any) -> None:
    taken: list[int] = []

    def inputs() -> Iterator[Any]:
        for i in range(50):
            taken.append(i)
            yield X[: 1 + i % 10] + i

    model = mlp()
    dispatched = baechi.dispatch(model, RoundRobin(2, batch_size=4), workers=workers)
    with torch.no_grad():
        for i, found in enumerate(dispatched.stream(inputs())):
            assert_close(found, model(X[: 1 + i % 10] + i))
            assert len(taken) <= i + 8  # as many as are in flight, not all
            if i == 20:
                break
        assert len(taken) < 30
        assert_close(dispatched(X), model(X))  # what was given up is over


def test_a_stream_takes_what_distribute_takes() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    given = [(X, X), {"x": X, "y": X}, baechi.Inputs(X, y=X)]
    for found in baechi.dispatch(Two(), small(4)).stream(given):
        assert_close(found, 2 * X)


def test_threads_have_the_callers_settings() -> None:
    """What is per thread in torch is the caller's in each worker; nothing of it stays behind."""
    seen: list[tuple[Any, ...]] = []

    class Settings(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = torch.ones(1)
            seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), made.device.type))
            return x @ x.t().sum(1, keepdim=True) if torch.is_autocast_enabled("cpu") else x

    model = baechi.dispatch(Settings(), RoundRobin(2, batch_size=2), workers="thread", out=("cat", 0))
    model(X)
    with torch.no_grad():
        model(X)
    with torch.inference_mode():
        model(X)
    with torch.device("meta"):
        model(X)
    assert set(seen[:5]) == {(True, False, "cpu")}
    assert set(seen[5:10]) == {(False, False, "cpu")}
    assert set(seen[10:15]) == {(False, True, "cpu")}
    assert set(seen[15:]) == {(True, False, "meta")}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(X).dtype == torch.bfloat16


def test_generators_kernel_flags_and_the_default_dtype_are_the_processes() -> None:
    """Threads share them: a draw in a thread is a draw of the one generator, in no fixed order."""
    seen: list[Any] = []

    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((torch.get_default_dtype(), torch.backends.mkldnn.enabled))
            return torch.rand(x.shape[:1])

    model = baechi.dispatch(Draws(), RoundRobin(2, batch_size=2), workers="thread", out=("cat", 0))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            torch.manual_seed(1)
            found = model(X)
        torch.manual_seed(1)
        expected = torch.rand(10)
    finally:
        torch.set_default_dtype(torch.float32)
    assert set(seen) == {(torch.float64, False)}
    assert sorted(found.tolist()) == sorted(expected.tolist())  # the same draws, dealt out as threads came
