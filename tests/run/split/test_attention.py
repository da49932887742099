"""`nn.MultiheadAttention` split by heads: values, weights and gradients are those of the whole layer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.split.split_layers import TOLERANCE, assert_same, split_on, twins
from torch import nn

import baechi
from baechi.torchlib.shards.weight import ShardedWeight

BATCH, QUERIES, KEYS = 2, 5, 4
CAUSAL = torch.triu(torch.ones(QUERIES, QUERIES, dtype=torch.bool), 1)
PADDING = torch.zeros(BATCH, KEYS, dtype=torch.bool).index_fill_(1, torch.tensor([3]), 1)


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


class Attending(nn.Module):
    """Attention between two functional ops; it returns what it attends to beside the values."""

    def __init__(self, asks: dict[str, Any], **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 6, **options)
        self.asks = asks

    def forward(self, query: torch.Tensor, key: torch.Tensor | None = None) -> Any:
        key = query if key is None else key
        made, weights = self.attention(query * 2, key, key[..., : self.attention.vdim], **self.asks)
        return made.sin(), weights


ITSELF, CROSS = ((BATCH, QUERIES, 12),), ((BATCH, QUERIES, 12), (BATCH, KEYS, 12))
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[tuple[int, ...], ...], int]] = {
    "plain": ({"need_weights": False}, {"batch_first": True}, ITSELF, 3),
    "uneven, averaged weights": ({}, {"batch_first": True}, CROSS, 4),
    "each head's weights": ({"average_attn_weights": False}, {"bias": False}, ((5, 2, 12), (4, 2, 12)), 4),
    "causal": (
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False}, {"batch_first": True}, ITSELF, 2
    ),
    "padded": ({"key_padding_mask": PADDING, "need_weights": False}, {"batch_first": True}, CROSS, 3),
    "padded, added mask of heads": (
        {"key_padding_mask": PADDING.double() * -9, "attn_mask": drawn(BATCH * 6, QUERIES, KEYS)},
        {"batch_first": True}, CROSS, 4,
    ),
    "unbatched": ({}, {}, ((QUERIES, 12), (KEYS, 12)), 2),
    "other widths": ({}, {"kdim": 9, "vdim": 7, "batch_first": True}, ((2, 5, 12), (2, 4, 9)), 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str) -> None:
    """Masks, weights of heads, batches on either side, keys and values of other widths."""
    asks, options, shapes, shards = CASES[case]
    model, plain = twins(lambda: Attending(asks, **options))
    given = [drawn(*shape, seed=place) for place, shape in enumerate(shapes)]
    cluster = split_on(shards, model, tuple(given), {"attention": shards}, placer="round-robin")
    found: list[Any] = []
    for network in (model, plain):
        inputs = [one.clone().requires_grad_() for one in given]
        with cluster:
            made, weights = network(*inputs)
            loss = made.sum() if weights is None else made.sum() + (weights * weights).sum()
            loss.backward()
        of_inputs = [one.grad for one in inputs]
        found.append([value for value in (made, weights, *of_inputs) if value is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=0, atol=TOLERANCE)
    assert_same(model, plain)
    weight = model.attention.out_proj.weight
    assert isinstance(weight, ShardedWeight) and len(weight.shards) == shards
    with torch.no_grad():  # where torch would take its fused path
        one, other = [network.eval()(*given)[0] for network in (model, plain)]
    torch.testing.assert_close(one.cpu(), other, rtol=0, atol=TOLERANCE)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout": (lambda: Attending({}, dropout=0.1), r"its dropout of 0\.1 .* set its `dropout` to 0\.0"),
    "bias of keys": (lambda: Attending({}, add_bias_kv=True), "does not know its weights bias_k, bias_v"),
    "zeros": (lambda: Attending({}, add_zero_attn=True), "add_zero_attn=True"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    build, reason = REFUSED[case]
    with pytest.raises(baechi.PlanError, match=rf"\(MultiheadAttention\) cannot be split: .*{reason}"):
        split_on(2, twins(build)[0], drawn(5, 2, 12), {"attention": 2})


class Decoder(nn.Module):
    """Torch's own decoder, as it is."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(12, 4, 16, dropout=0.0, batch_first=True)
        self.stack = nn.TransformerDecoder(layer, 1)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        made: torch.Tensor = self.stack(x, memory, tgt_mask=mask, tgt_is_causal=True)
        return made


def test_a_decoder_of_torch() -> None:
    """Both of its attentions by heads, and its MLP, with an optimizer; there and back."""
    model, plain = twins(Decoder)
    inputs = (drawn(2, 5, 12), drawn(2, 4, 12))
    split = {f"stack.layers.0.{name}": 2 for name in ("self_attn", "multihead_attn", "linear1")}
    cluster = split_on(2, model, inputs, {**split, "stack.layers.0.linear2": {"in": 2}}, placer="round-robin")
    for network in (model, plain):
        optimizer = torch.optim.Adam(network.parameters(), 0.05)
        for _ in range(2):
            optimizer.zero_grad()
            with cluster:
                network(*inputs).square().mean().backward()
            optimizer.step()
    assert_same(model, plain, tolerance=1e-9)
    plain.load_state_dict(model.state_dict())
    baechi.restore(model)
    assert torch.equal(model(*inputs), plain(*inputs))
