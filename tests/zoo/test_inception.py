"""Inception-v3 has the published size, branches, and trains in every parameter."""

import pytest
import torch
from torch import nn

from baechi.zoo import InceptionV3, inception_v3


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_published_parameters() -> None:
    """Full size has the parameters of the released model, with and without its auxiliary head."""
    plain, _ = inception_v3(device="meta")
    helped, _ = inception_v3(device="meta", auxiliary=True)
    assert parameters(plain) == 23_834_568
    # A 1x1 and a 5x5 unit (weights, and two numbers a channel for the norm), and a classifier.
    head = 768 * 128 + 2 * 128 + 25 * 128 * 768 + 2 * 768 + 769 * 1000
    assert parameters(helped) - parameters(plain) == head


def test_published_grids() -> None:
    """A 299x299 image meets blocks on grids of 35, 17 and 8, with the paper's channels."""
    model, (images,) = inception_v3(batch=2, device="meta")
    a = model.blocks_a(model.stem(images))
    c = model.blocks_c(model.block_b(a))
    e = model.blocks_e(model.block_d(c))
    shapes = [tuple(grid.shape[1:]) for grid in (a, c, e)]
    assert shapes == [(288, 35, 35), (768, 17, 17), (2048, 8, 8)]


def test_auxiliary_logits() -> None:
    """The auxiliary classifier adds its logits in training only."""
    model = InceptionV3(10, 1 / 16, (32,), (128,), 1, auxiliary=True)
    images = torch.randn(2, 3, 299, 299)
    logits, auxiliary = model(images)
    assert logits.shape == auxiliary.shape == (2, 10)
    assert model.eval()(images).shape == (2, 10)


def test_every_gradient() -> None:
    """A step of the small model reaches every parameter."""
    model, inputs = inception_v3("small")
    logits = model(*inputs)
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert logits.shape == (2, 10)
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


def test_seed() -> None:
    """The seed alone decides weights and images, and the caller's random state stays."""
    before = torch.get_rng_state()
    first, first_inputs = inception_v3("small", seed=3)
    second, second_inputs = inception_v3("small", seed=3)
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(first_inputs, second_inputs, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_size() -> None:
    """An unknown size is refused, and the known ones are named."""
    with pytest.raises(ValueError, match=r"unknown size 'tiny' \(known: full, small\)"):
        inception_v3("tiny")
