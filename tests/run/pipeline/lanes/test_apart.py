"""Settings of the process, generators and arrays of the model: each microbatch has its own, in any order."""

import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from baechi.run.pipeline.batch.judge import Judge
from baechi.torchlib.process_settings import process_settings

pytestmark = pytest.mark.default_cases(2)

X = noise(6, 4)
WHERE = {"first": 0, "middle": 1, "last": 0}
ORDERS = ("gpipe", "1f1b", "interleaved")


@pytest.fixture(autouse=True)
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are steps: what the models count and set in looks is none of theirs."""
    monkeypatch.setattr(Judge, "verdict", lambda judge, case, **_: judge.known(case))


class Three(nn.Module):
    """Three layers, with something done between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))

    def around(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        with self.around():
            result: Tensor = self.last(self.between(self.middle(self.between(self.first(x)))))
        return result.square().mean()


def distributed(model: nn.Module, order: str) -> nn.Module:
    pipelined(model, X, device_map=WHERE, order=order, loss_weights="rows")
    return model


class _Dtype:
    """The model's code sets the default dtype, and puts it back."""

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float16)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self.before)


SET: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "kernels": lambda: sdpa_kernel(SDPBackend.MATH),
    "their order": lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True),
    "dtype": _Dtype,
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "cudnn": lambda: torch.backends.cudnn.flags(enabled=False, deterministic=True, benchmark=True),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("what", SET)
def test_settings_of_the_process(what: str, order: str) -> None:
    """They hold in the whole of each microbatch's code, and are the caller's after the step."""

    class Sets(Three):
        def around(self) -> AbstractContextManager[Any]:
            return SET[what]()

        def between(self, x: Tensor) -> Tensor:
            seen.append(process_settings())
            return x

    seen: list[Any] = []
    before = process_settings()
    with SET[what]():
        inside = process_settings()
    assert inside != before
    model = distributed(seeded(Sets), order)
    seen.clear()
    for _ in range(2):
        model(X).backward()
        assert process_settings() == before
    assert seen and all(one == inside for one in seen)


def test_a_setting_that_the_code_leaves_stays() -> None:
    """As after a plain step; and no microbatch finds that of another."""

    class Leaves(Three):
        def between(self, x: Tensor) -> Tensor:
            seen.append(torch.get_default_dtype())
            torch.set_default_dtype(torch.float16)
            return x

    seen: list[torch.dtype] = []
    before = torch.get_default_dtype()
    try:
        model = distributed(seeded(Leaves), "gpipe")
        model(X)  # the first step looks at a few rows, too
        torch.set_default_dtype(before)
        seen.clear()
        model(X)
        assert torch.get_default_dtype() is torch.float16
        assert seen.count(before) == 3 and len(seen) == 6
    finally:
        torch.set_default_dtype(before)


def test_a_step_that_fails_leaves_settings() -> None:
    """Of microbatches that had begun, too."""

    class Fails(Three):
        def around(self) -> AbstractContextManager[Any]:
            return _Dtype()

        def between(self, x: Tensor) -> Tensor:
            seen.append(x)
            if len(seen) == 5:
                raise ValueError
            return x

    seen: list[Tensor] = []
    model, before = distributed(seeded(Fails), "1f1b"), process_settings()
    seen += [X] * 5
    model(X)  # the first step looks at a few rows, too
    seen.clear()
    with pytest.raises(ValueError):
        model(X)
    assert process_settings() == before


class Noisy(Three):
    """It draws from a generator of its own, which it keeps in a tuple in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.generators = [(torch.Generator(),)]

    def between(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=self.generators[0][0], dtype=x.dtype)


def test_a_generator_of_the_model() -> None:
    """The order of tasks does not matter; a step moves it by one draw, so the next draws other numbers."""
    found = []
    for order in ORDERS:
        model: Any = distributed(seeded(Noisy), order)
        generator = model.generators[0][0].manual_seed(7)
        losses = [model(X).item() for _ in range(2)]
        expected = torch.Generator().manual_seed(7)
        for _ in range(2):
            torch.randint(2**62, (3,), generator=expected)
        assert torch.equal(generator.get_state(), expected.get_state())
        found.append(losses)
    assert found[0] == found[1] == found[2] and found[0][0] != found[0][1]


def test_each_part_draws_from_a_seed() -> None:
    """A loop that seeds the generator before each part gives the same loss."""
    plain: Any = seeded(Noisy)
    model: Any = distributed(seeded(Noisy), "1f1b")
    model.generators[0][0].manual_seed(7)
    seeds = torch.randint(2**62, (3,), generator=torch.Generator().manual_seed(7)).tolist()
    losses = []
    for seed, part in zip(seeds, X.chunk(3), strict=True):
        plain.generators[0][0].manual_seed(seed)
        losses.append(plain(part))
    assert torch.allclose(model(X), torch.stack(losses).mean())


def test_a_generator_that_is_not_used_or_whose_step_fails() -> None:
    """It stays as it is."""
    model: Any = distributed(seeded(Noisy), "1f1b")
    generator = model.generators[0][0]
    model(X)
    before = generator.get_state()
    handle = model.last.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(X)
    assert torch.equal(generator.get_state(), before)
    handle.remove()
    model.between = lambda x: x
    model(X)
    assert torch.equal(generator.get_state(), before)


ARRAYS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.zeros(1),
    "numpy, a scalar's shape": lambda: np.zeros(()),
    "numpy, a part of another": lambda: np.zeros((4, 3))[::2, 1],
    "array": lambda: array.array("d", [0.0]),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_no_tensors(kind: str, order: str) -> None:
    """What forward writes there is read by the same microbatch; what the last one wrote stays."""

    class Writes(Three):
        def __init__(self) -> None:
            super().__init__()
            self.seen = {"array": ARRAYS[kind]()}

        def forward(self, x: Tensor) -> Tensor:
            seen, first = self.seen["array"], self.first(x)
            place = () if getattr(seen, "ndim", 1) == 0 else 0
            seen[place] = float(x.mean())
            result: Tensor = self.last(self.middle(first))
            return (result * float(seen[place])).square().mean()

    plain, model = seeded(Writes), distributed(seeded(Writes), order)
    expected = torch.stack([plain(part) for part in X.chunk(3)]).mean()
    assert torch.allclose(model(X), expected)
    written: Any = model.seen
    assert bytes(written["array"].tobytes()) == bytes(plain.seen["array"].tobytes())  # type: ignore[union-attr, operator, index]
