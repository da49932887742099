"""Tables of words whose rows are multiplied by a number, as models of transformers have them."""

from collections.abc import Callable

import pytest
import torch
from run.split.split_layers import Around, assert_runs_alike, split_on, twins, words
from torch import nn

import baechi


class ByNumberScaledWordEmbedding(nn.Embedding):
    """As in mBART and others; with another number, as Gemma's before it was a buffer."""

    embed_scale = 48**0.5

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * self.embed_scale


class ByBufferScaledWordEmbedding(nn.Embedding):
    """As in Gemma 3."""

    def __init__(self, *sizes: int, padding_idx: int | None = None) -> None:
        super().__init__(*sizes, padding_idx=padding_idx)
        self.scalar_embed_scale = 48**0.5
        self.register_buffer("embed_scale", torch.tensor(48**0.5), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = super().forward(ids) * self.embed_scale.to(self.weight.dtype)
        return made


class MoreScaledWordEmbedding(ByNumberScaledWordEmbedding):
    """It does more."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids).sin()


class UnreadScaledWordEmbedding(nn.Embedding):
    """It has no such number."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 2


class TwoScaledWordEmbedding(ByNumberScaledWordEmbedding):
    """It takes two arguments."""

    def forward(self, ids: torch.Tensor, shift: int) -> torch.Tensor:  # type: ignore[override]
        return super().forward(ids + shift)


class Shifts(nn.Module):
    """It calls one that takes two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = TwoScaledWordEmbedding(13, 6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(ids, 1)
        return made


class Head(nn.Module):
    """A language model whose head shares the weight of such a table."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(6, 13, bias=False)
        self.head.weight = table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.table(ids).sin())
        return made


BUILDS = [ByNumberScaledWordEmbedding, ByBufferScaledWordEmbedding]


@pytest.mark.parametrize("dim", ["num_embeddings", "dim"])
@pytest.mark.parametrize("build", BUILDS)
def test_values_and_gradients(build: Callable[..., nn.Module], dim: str) -> None:
    """A split table returns what the whole one does, to the last digit, in three precisions."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model, plain = twins(lambda: Around(build(13, 6, padding_idx=9)))
        model, plain, given = model.to(dtype), plain.to(dtype), words(3, 4, below=12)
        cluster = split_on(3, model, given, {"layer": {dim: 3}}, placer="round-robin")
        assert_runs_alike(model, plain, given, cluster)


@pytest.mark.parametrize("build", BUILDS)
def test_a_tied_head(build: Callable[..., nn.Embedding]) -> None:
    """Table and head are split together; a model on `meta` as well."""
    model, plain = twins(lambda: Head(build(13, 6)))
    given = words(3, 4, below=13)
    cluster = split_on(3, model, given, {"head": 3}, placer="round-robin")
    assert_runs_alike(model, plain, given, cluster)
    with torch.device("meta"):
        empty = Head(build(13, 6))
    graph = baechi.profile(empty, given, cluster=cluster, source="estimate")
    assert "table[2]" in baechi.split(graph, "head", {"out": 5})


@pytest.mark.parametrize("build", [MoreScaledWordEmbedding, UnreadScaledWordEmbedding])
def test_other_code_is_refused(build: type[nn.Embedding]) -> None:
    """The name alone is no promise of what it does."""
    with pytest.raises(baechi.PlanError, match=f"{build.__name__}.*does more than to multiply rows"):
        split_on(2, Around(build(13, 6)), words(3, 4, below=12), {"layer": 2})
    with pytest.raises(baechi.PlanError, match="does more than to multiply rows"):
        split_on(2, Shifts(), words(3, 4, below=12), {"layer": 2})
