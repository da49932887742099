"""What the code changes around a waiting layer comes too late for it."""

from contextvars import ContextVar
from typing import Any

import pytest
import torch
from order.interleaved import interleaved
from run.checks import REORDER, check_late, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import baechi
from baechi.errors import BaechiError
from baechi.run.binding import binding_of

SHADE: ContextVar[float] = ContextVar("SHADE", default=1.0)


class Scales(nn.Module):
    """A layer that reads attributes of its own, a list on it, and a context variable."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.scale, self.more = 1.0, [1.0]
        self.offset: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.weight * self.scale * self.more[0] * SHADE.get()
        return scaled if self.offset is None else scaled + self.offset


class Attends(nn.Module):
    """A layer for which torch chooses between kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x)[None, None].chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value)[0, 0]


class Keeps(nn.Module):
    """A layer that leaves something on itself for the code to read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.kept: Any = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.pow(2).mean()
        return x * self.weight


class Changing(nn.Module):
    """What the code does to `m` around its calls, in one of several ways; `m` waits for the others."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        kinds = {"kernels": Attends, "keeps": Keeps, "training_flag": lambda: nn.Dropout(0.5)}
        self.m: Any = kinds.get(change, Scales)()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        first = getattr(self, self.change)(self.a(x))
        second = self.m(self.b(x))
        result: Tensor = self.c(x) + self.d(first) + second
        return result + self.m.kept if self.change == "keeps" else result

    def attribute(self, x: Tensor) -> Any:
        self.m.scale = 2.0
        y = self.m(x)
        self.m.scale = 1.0
        return y

    def container(self, x: Tensor) -> Any:
        self.m.more[0] = 2.0
        y = self.m(x)
        self.m.more[0] = 1.0
        return y

    def tensor(self, x: Tensor) -> Any:
        self.m.offset = torch.ones(8)
        y = self.m(x)
        self.m.offset.mul_(3)
        self.m.offset = None
        return y

    def weights(self, x: Tensor) -> Any:
        return torch.func.functional_call(self.m, {"weight": self.m.weight * 2}, (x,))

    def trained(self, x: Tensor) -> Any:
        self.m.requires_grad_(False)
        y = self.m(x)
        self.m.requires_grad_(True)
        return y

    def training_flag(self, x: Tensor) -> Any:
        self.m.eval()
        y = self.m(x)
        self.m.train(self.training)
        return y

    def context(self, x: Tensor) -> Any:
        token = SHADE.set(2.0)
        y = self.m(x)
        SHADE.reset(token)
        return y

    def kernels(self, x: Tensor) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return self.m(x)

    def keeps(self, x: Tensor) -> Any:
        return self.m(x) + self.m.kept


CHANGES = (
    "attribute", "container", "tensor", "weights", "trained", "training_flag", "context", "kernels", "keeps",
)  # fmt: skip


TOLD = ("attribute", "container", "training_flag")
"""What is noticed when the layer launches: an error says so."""


@pytest.mark.parametrize("reorder", REORDER)
@pytest.mark.parametrize("change", CHANGES)
def test_a_waiting_layer_computes_with_what_was_set_when_it_was_reached(change: str, reorder: Any) -> None:
    """A layer that waits launches later, when the code may have changed it.

    It computed with what hung on it then: other numbers, and nobody was told. `functional_call`, as
    MAML and ensembles use it, gave the weights back before the layer launched.
    """
    if change in TOLD and reorder is not False:
        with pytest.raises(BaechiError, match=r"m: it was changed .* Run this model with reorder=False"):
            check_late(lambda: Changing(change), vectors, reorder, training=True)
        return
    token = SHADE.set(0.5)  # the caller's
    model = check_late(lambda: Changing(change), vectors, reorder, training=True)
    SHADE.reset(token)
    runtime = binding_of(model).runtime  # type: ignore[union-attr]
    assert reorder is False or runtime.counts["deferred"]


class Writes(nn.Module):
    """Writes its argument in place, though it did not when it was captured."""

    writes = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            with torch.no_grad():
                x.add_(1)
        return x * self.weight


class Siblings(nn.Module):
    """A layer that waits, and one that writes what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.writes = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), Writes()

    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        a = self.a(h)
        written = self.writes(h)
        return self.c(a + self.b(x)) + written


@pytest.mark.parametrize("reorder", ["host", "threads"])
def test_what_was_written_while_a_layer_waited_to_read_it_is_told(reorder: Any) -> None:
    """No capture saw that it writes. Wrong numbers would be silent."""
    model, cluster = Siblings(), baechi.Cluster.virtual(2)
    graph = baechi.profile(model, vectors(), cluster=cluster, training=True, source="estimate")
    where = {"": 0, "c": 1, "writes": 1}
    baechi.assign(model, interleaved(graph, cluster, where, ["b", "a", "writes", "c"]), reorder=reorder)
    with cluster:
        model(**vectors())
        assert binding_of(model).runtime.counts["deferred"]  # type: ignore[union-attr]
        model.writes.writes = True
        with pytest.raises(BaechiError, match=r"what it reads was written .* reorder=False"):
            model(**vectors())
