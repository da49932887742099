"""Transformer, the encoder-decoder translator of attention alone.

Source: Vaswani et al., "Attention Is All You Need", 2017 (arXiv:1706.03762): attention (3.2), feed
forward (3.3), embeddings (3.4), positions (3.5), dropout (5.4), sizes of the base model (Table 3).
Layers are normalized after the residual sum, as in the paper.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PADDING = 0  # token id that fills a sentence up to the length of its batch


class PositionalEncoding(nn.Module):
    """Add sines and cosines of the position to the features (Section 3.5).

    Args:
        features: features of a token; even.
        max_length: number of positions.
        dropout: probability to drop a feature of the sum.
    """

    table: Tensor

    def __init__(self, features: int, max_length: int, dropout: float) -> None:
        super().__init__()
        position = torch.arange(max_length).unsqueeze(1)
        # Wavelengths from 2 pi to 10,000 * 2 pi, a sine and a cosine of each side by side.
        rate = torch.exp(torch.arange(0, features, 2) * (-math.log(10_000.0) / features))
        angle = position * rate
        table = torch.stack([torch.sin(angle), torch.cos(angle)], dim=2).flatten(1)
        self.register_buffer("table", table)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, features) to the same shape."""
        summed: Tensor = self.dropout(x + self.table[: x.size(1)])
        return summed


class MultiHeadAttention(nn.Module):
    """Attention by several heads, each on its share of the features (Section 3.2.2).

    Args:
        features: features of a token.
        heads: number of heads; divides the features.
    """

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # Bare matrices, as in the paper.
        self.query = nn.Linear(features, features, bias=False)
        self.key = nn.Linear(features, features, bias=False)
        self.value = nn.Linear(features, features, bias=False)
        self.out = nn.Linear(features, features, bias=False)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Let every token of x look at the memory."""
        attended = F.scaled_dot_product_attention(
            self._split(self.query(x)),
            self._split(self.key(memory)),
            self._split(self.value(memory)),
            attn_mask=mask,
        )
        result: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return result

    def _split(self, x: Tensor) -> Tensor:
        """(batch, length, features) to (batch, heads, length, features / heads)."""
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between, at each position (Section 3.3).

    Args:
        features: features of a token.
        inner: features between the maps.
    """

    def __init__(self, features: int, inner: int) -> None:
        super().__init__()
        self.inner = nn.Linear(features, inner)
        self.out = nn.Linear(inner, features)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, features) to the same shape."""
        result: Tensor = self.out(F.relu(self.inner(x)))
        return result


class EncoderLayer(nn.Module):
    """Self-attention and feed forward, each with dropout, residual sum and norm (Section 3.1).

    Args:
        features: features of a token.
        inner: features inside the feed forward.
        heads: heads of the attention.
        dropout: probability to drop a feature of a sub-layer's output.
    """

    def __init__(self, features: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(features, heads)
        self.attention_dropout = nn.Dropout(dropout)
        self.attention_norm = nn.LayerNorm(features)
        self.feed_forward = FeedForward(features, inner)
        self.feed_forward_dropout = nn.Dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(features)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (batch, source, features) to the same shape; mask as in MultiHeadAttention."""
        x = self.attention_norm(x + self.attention_dropout(self.attention(x, x, mask)))
        x = self.feed_forward_norm(x + self.feed_forward_dropout(self.feed_forward(x)))
        return x


class DecoderLayer(nn.Module):
    """An encoder layer's two parts with attention to the encoder's output between (Section 3.1).

    Args:
        features: features of a token.
        inner: features inside the feed forward.
        heads: heads of both attentions.
        dropout: probability to drop a feature of a sub-layer's output.
    """

    def __init__(self, features: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(features, heads)
        self.attention_dropout = nn.Dropout(dropout)
        self.attention_norm = nn.LayerNorm(features)
        self.cross = MultiHeadAttention(features, heads)
        self.cross_dropout = nn.Dropout(dropout)
        self.cross_norm = nn.LayerNorm(features)
        self.feed_forward = FeedForward(features, inner)
        self.feed_forward_dropout = nn.Dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(features)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, memory_mask: Tensor) -> Tensor:
        """Map (batch, target, features) to the same shape, beside memory (batch, source, features).

        mask says where the target may look at itself, memory_mask where at the memory.
        """
        x = self.attention_norm(x + self.attention_dropout(self.attention(x, x, mask)))
        x = self.cross_norm(x + self.cross_dropout(self.cross(x, memory, memory_mask)))
        x = self.feed_forward_norm(x + self.feed_forward_dropout(self.feed_forward(x)))
        return x


class Transformer(nn.Module):
    """Translate by attention; the defaults are the paper's base model, with 30,000 tokens.

    Args:
        vocab: number of tokens, for the source and for the target; token 0 is padding.
        features: features of a token; even.
        inner: features inside the feed forwards.
        heads: heads of an attention; divides the features.
        layers: layers of the encoder and of the decoder.
        dropout: probability to drop a feature of an embedding or of a sub-layer's output.
        max_length: the most tokens that a sentence may have.
        tie_embeddings: whether both embeddings and the projection share one weight (Section 3.4).
    """

    def __init__(
        self,
        vocab: int = 30_000,
        features: int = 512,
        inner: int = 2048,
        heads: int = 8,
        layers: int = 6,
        dropout: float = 0.1,
        max_length: int = 512,
        tie_embeddings: bool = False,
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(features)
        self.source_embedding = nn.Embedding(vocab, features)
        self.source_positions = PositionalEncoding(features, max_length, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(features, inner, heads, dropout) for _ in range(layers))
        self.target_embedding = nn.Embedding(vocab, features)
        self.target_positions = PositionalEncoding(features, max_length, dropout)
        self.decoder = nn.ModuleList(DecoderLayer(features, inner, heads, dropout) for _ in range(layers))
        self.projection = nn.Linear(features, vocab, bias=False)
        # Small, because forward multiplies by the scale and a tied projection must not overshoot.
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=1 / self.scale)
        if tie_embeddings:
            self.target_embedding.weight = self.source_embedding.weight
            self.projection.weight = self.source_embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Score the next target token at every step (teacher forcing)."""
        source_mask = (source != PADDING)[:, None, None, :]
        length = target.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        target_mask = (target != PADDING)[:, None, None, :] & causal

        memory = self.source_positions(self.source_embedding(source) * self.scale)
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        x = self.target_positions(self.target_embedding(target) * self.scale)
        for layer in self.decoder:
            x = layer(x, memory, target_mask, source_mask)
        logits: Tensor = self.projection(x)
        return logits
