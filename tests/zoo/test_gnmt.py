"""GNMT has the paper's layers, hides padding and the future, and trains in every parameter."""

import pickle

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import rnn

from baechi.zoo import MODELS, gnmt
from baechi.zoo.gnmt import BidirectionalLSTM


def lstm(inputs: int, hidden: int) -> int:
    """Parameters of an LSTM: four gates, each with two matrices and two biases."""
    return 4 * hidden * (inputs + hidden + 2)


def test_full_parameters() -> None:
    """Full size is 4 + 4 layers of 512, the first both ways, later decoder layers with context."""
    model, (source, target) = gnmt(device="meta")
    vocab, hidden = 30_000, 512
    encoder = 2 * lstm(hidden, hidden) + lstm(2 * hidden, hidden) + 2 * lstm(hidden, hidden)
    decoder = lstm(hidden, hidden) + 3 * lstm(2 * hidden, hidden)
    attention = 2 * hidden * hidden + 2 * hidden
    words = 2 * vocab * hidden + (hidden + 1) * vocab
    expected = encoder + decoder + attention + words
    assert sum(p.numel() for p in model.parameters()) == expected
    # Two steps: on meta, PyTorch runs an LSTM step by step in Python.
    assert model(source[:, :2], target[:, :2]).shape == (128, 2, vocab)


def test_source_padding_hidden() -> None:
    """Padding added to the source changes no logit, though a layer reads it backwards."""
    model, (source, target) = gnmt("small", dropout=0.0)
    model.double()
    assert (source == 0).any()
    torch.testing.assert_close(model(F.pad(source, (0, 3)), target), model(source, target))


def test_reads_both_ways() -> None:
    """The first layer gives what PyTorch's bidirectional LSTM gives for packed sentences."""
    ours, lengths = BidirectionalLSTM(3, 4), torch.tensor([5, 2])
    theirs = torch.nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    for name, weight in ours.ahead.named_parameters():
        theirs.get_parameter(name).data = weight.data
        theirs.get_parameter(name + "_reverse").data = ours.back.get_parameter(name).data
    x = torch.randn(2, 5, 3)
    packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
    expected, _ = rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    found = ours(x, lengths)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1, :2], expected[1, :2])


def test_residual_from_third() -> None:
    """Silent third and fourth layers hand the second layer's output on."""
    model, (source, _) = gnmt("small", dropout=0.0)
    second: list[torch.Tensor] = []
    model.encoder.layers[0].register_forward_hook(lambda _, __, out: second.append(out[0]))
    for parameter in model.encoder.layers[1:].parameters():
        torch.nn.init.zeros_(parameter)
    memory = model.encoder(source, (source != 0).sum(dim=1))
    assert torch.equal(memory, second[0])


def test_future_hidden() -> None:
    """A target token changes its own logits and later ones, and no earlier one."""
    model, (source, target) = gnmt("small", dropout=0.0)
    changed = target.clone()
    changed[:, 3] = changed[:, 3] % 49 + 1
    before, after = model(source, target), model(source, changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).flatten(2).any(dim=2).all()


def test_every_gradient() -> None:
    """A step of the small model reaches every parameter."""
    model, (source, target) = gnmt("small")
    logits = model(source, target)
    F.cross_entropy(logits.flatten(0, 1), target.roll(-1, dims=1).flatten()).backward()
    assert logits.shape == (4, 6, 50)
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


def test_seed() -> None:
    """The seed alone decides weights and sentences; another seed gives others."""
    first, first_inputs = gnmt("small", seed=3)
    second, second_inputs = pickle.loads(pickle.dumps(gnmt("small", seed=3)))
    other, _ = gnmt("small", seed=4)
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(first_inputs, second_inputs, rtol=0, atol=0)
    assert not torch.equal(first.projection.weight, other.projection.weight)


@pytest.mark.parametrize("name", MODELS)
def test_unknown_size(name: str) -> None:
    """An unknown size of any model is refused, and the known ones are named."""
    with pytest.raises(ValueError, match=r"unknown size 'tiny' \(known: full, small\)"):
        MODELS[name]("tiny")
