"""The Transformer has the paper's size, hides padding and the future, and can tie its weights."""

import math

import pytest
import torch
from torch.nn import functional as F

from baechi.zoo import transformer


def layers(features: int, inner: int) -> int:
    """Parameters of an encoder layer and a decoder layer together."""
    attention = 4 * features * features
    feed_forward = 2 * features * inner + features + inner
    norm = 2 * features
    return 3 * attention + 2 * feed_forward + 5 * norm


@pytest.mark.parametrize(("tied", "tables"), [(False, 3), (True, 1)])
def test_full_parameters(tied: bool, tables: int) -> None:
    """Full size is the base model: 6 + 6 layers and three tables of words, or one when tied."""
    model, (source, target) = transformer(device="meta", tie_embeddings=tied)
    expected = 6 * layers(512, 2048) + tables * 30_000 * 512
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model(source, target).shape == (64, 50, 30_000)


def test_source_padding_hidden() -> None:
    """What stands in the source's padding, and how long it is, changes no logit."""
    model, (source, target) = transformer("small", dropout=0.0)
    model.double()
    expected = model(source, target)
    with torch.no_grad():
        model.source_embedding.weight[0] += 1.0
    assert (source == 0).any()
    torch.testing.assert_close(model(F.pad(source, (0, 3)), target), expected)


def test_future_hidden() -> None:
    """A target token changes its own logits and later ones, and no earlier one."""
    model, (source, target) = transformer("small", dropout=0.0)
    changed = target.clone()
    changed[:, 3] = changed[:, 3] % 49 + 1
    before, after = model(source, target), model(source, changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).flatten(2).any(dim=2).all()


def test_positions() -> None:
    """Positions are the paper's sines and cosines, of wavelengths that grow with the feature."""
    model, _ = transformer("small")
    table = model.source_positions.table
    angle = 5 / 10_000 ** (6 / 16)
    torch.testing.assert_close(table[5, 6:8], torch.tensor([math.sin(angle), math.cos(angle)]))


@pytest.mark.parametrize("tied", [False, True])
def test_every_gradient(tied: bool) -> None:
    """A step of the small model reaches every parameter."""
    model, (source, target) = transformer("small", tie_embeddings=tied)
    logits = model(source, target)
    F.cross_entropy(logits.flatten(0, 1), target.roll(-1, dims=1).flatten()).backward()
    assert logits.shape == (4, 6, 50)
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


def test_seed() -> None:
    """The seed decides the weights, whatever the caller drew before; dropout stays the caller's."""
    first, inputs = transformer("small", seed=3)
    torch.rand(5)
    second, _ = transformer("small", seed=3)
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    assert not torch.equal(first(*inputs), first(*inputs))
