"""GNMT, the recurrent translator: a long chain of LSTMs, crossed by one attention.

Source: Wu et al., "Google's Neural Machine Translation System: Bridging the Gap between Human and
Machine Translation", 2016 (arXiv:1609.08144), Section 3: residual connections (3.1), the
bidirectional first layer (3.2). The additive attention is that of Bahdanau, Cho and Bengio, "Neural
Machine Translation by Jointly Learning to Align and Translate", 2014 (arXiv:1409.0473).

    source -> embedding -> [ahead | back] -> 2 -> 3 (+) -> 4 (+) ----+ memory
                                                                     v
    target -> embedding -> 1 ----------------------------------> attention
                           |                                         | context
                           +--> 2 ---> 3 (+) ---> 4 (+) -> logits    | to 2, 3, 4
                                ^------^----------^------------------+

One deviation: the paper asks the attention with the first decoder layer's output of the step
*before*. Here step t asks with the output of step t, so under teacher forcing a layer runs over the
whole sequence at once: one call of one nn.LSTM per layer, not one per time step.
"""

import torch
from torch import Tensor, nn

PADDING = 0  # token id that fills a source sentence up to the length of its batch
FIRST_RESIDUAL = 2  # index of the first layer whose input is added to its output: the third


class BidirectionalLSTM(nn.Module):
    """Two LSTMs that read each sentence in opposite directions; neither waits for the other.

    They are two modules, because the paper computes them side by side (Figure 1, Section 3.2).

    Args:
        inputs: features of a token.
        hidden: features of each direction's output.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.ahead = nn.LSTM(inputs, hidden, batch_first=True)
        self.back = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Read sentences both ways."""
        # Each sentence is mirrored within its own length. Its padding stays behind it, where an
        # LSTM cannot see it yet; and mirroring again restores the order.
        position = torch.arange(x.size(1), device=x.device)
        last = lengths.unsqueeze(1) - 1
        mirror = torch.where(position <= last, last - position, position).unsqueeze(2)
        ahead, _ = self.ahead(x)
        back, _ = self.back(x.gather(1, mirror.expand_as(x)))
        return torch.cat([ahead, back.gather(1, mirror.expand_as(back))], dim=2)


class AdditiveAttention(nn.Module):
    """Weigh the memory by a small network of query and memory (Bahdanau et al., Appendix A.1.2).

    All steps ask at once, so the network's hidden values take batch * target * source * hidden
    elements: the largest tensor of the model.

    Args:
        hidden: features of queries, memory and the network between.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden)
        # No bias: a number added to all scores does not change their softmax.
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, queries: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """Look the queries up in the memory."""
        asked = self.query(queries).unsqueeze(2) + self.key(memory).unsqueeze(1)
        scores = self.score(torch.tanh(asked)).squeeze(3)
        # The least finite number, not -inf: a sentence of padding only must not give NaN.
        scores = scores.masked_fill(padding.unsqueeze(1), torch.finfo(scores.dtype).min)
        return torch.bmm(torch.softmax(scores, dim=2), memory)


class Encoder(nn.Module):
    """Embed the source and read it by a bidirectional layer and layers above it.

    Args:
        vocab: number of source tokens.
        hidden: features of every layer.
        layers: number of layers, the bidirectional one included; at least 2.
        dropout: probability to drop an input feature of a layer.
    """

    def __init__(self, vocab: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.first = BidirectionalLSTM(hidden, hidden)
        sizes = [2 * hidden] + [hidden] * (layers - 2)
        self.layers = nn.ModuleList(nn.LSTM(size, hidden, batch_first=True) for size in sizes)
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in range(layers))

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Map tokens (batch, source) and their lengths (batch,) to (batch, source, hidden)."""
        x: Tensor = self.first(self.dropouts[0](self.embedding(source)), lengths)
        for index, layer in enumerate(self.layers, start=1):
            out, _ = layer(self.dropouts[index](x))
            x = out + x if index >= FIRST_RESIDUAL else out
        return x


class Decoder(nn.Module):
    """Embed the target, ask the attention from the first layer, and go up with its answer.

    Args:
        vocab: number of target tokens.
        hidden: features of every layer.
        layers: number of layers; at least 1.
        dropout: probability to drop an input feature of a layer.
    """

    def __init__(self, vocab: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.first = nn.LSTM(hidden, hidden, batch_first=True)
        self.attention = AdditiveAttention(hidden)
        self.layers = nn.ModuleList(nn.LSTM(2 * hidden, hidden, batch_first=True) for _ in range(layers - 1))
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in range(layers))

    def forward(self, target: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """Read the target beside the encoded source."""
        x, _ = self.first(self.dropouts[0](self.embedding(target)))
        context = self.attention(x, memory, padding)
        for index, layer in enumerate(self.layers, start=1):
            out, _ = layer(self.dropouts[index](torch.cat([x, context], dim=2)))
            x = out + x if index >= FIRST_RESIDUAL else out
        result: Tensor = x
        return result


class GNMT(nn.Module):
    """Translate by LSTMs with attention; the defaults are the sizes of the placement paper.

    Args:
        vocab: number of tokens, for the source and for the target; token 0 is padding.
        hidden: features of embeddings and layers.
        layers: layers of the encoder and of the decoder; at least 2.
        dropout: probability to drop an input feature of a layer.
    """

    def __init__(self, vocab: int = 30_000, hidden: int = 512, layers: int = 4, dropout: float = 0.2) -> None:
        super().__init__()
        self.encoder = Encoder(vocab, hidden, layers, dropout)
        self.decoder = Decoder(vocab, hidden, layers, dropout)
        self.projection = nn.Linear(hidden, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Score the next target token at every step (teacher forcing)."""
        padding = source == PADDING
        lengths = (~padding).sum(dim=1)
        memory = self.encoder(source, lengths)
        logits: Tensor = self.projection(self.decoder(target, memory, padding))
        return logits
