"""Ten small models of torch's own modules, each of another kind, that return their loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

_ROWS, _TOKENS, _WIDTH, _WORDS, _SIZE = 8, 6, 16, 40, 16


@dataclass(frozen=True)
class Subject:
    """A model that is made anew for each run, the same each time.

    Args:
        name: what kind of model it is.
        make: makes it, in training mode; without dropout, since draws differ from device to device.
        inputs: makes a batch.
        split: the name of its layer that is split.
        in_parts: what has to come of microbatches: `"refused"` where rows depend on each other;
            `"skipped"` where statistics are those of each part, so that the whole batch is no witness.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    split: str
    in_parts: Literal["right", "refused", "skipped"] = "right"

    def build(self, dtype: torch.dtype) -> nn.Module:
        """The model with the same random weights each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make().to(dtype)

    def batch(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """The batch, on the host."""
        return tuple([x.to(dtype) if x.is_floating_point() else x for x in self.inputs()])


class Regression(nn.Module):
    """A model and the mean square of its distance from a target."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of x and its target, (batch, ...) each."""
        out: torch.Tensor = self.model(x)
        return F.mse_loss(out, target)


class Pairs(nn.Module):
    """Two towers, and the loss of telling each row's partner from those of the other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = _perceptron(), _perceptron()

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The loss of (batch, width) and their partners."""
        scores = self.left(x) @ self.right(other).T
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class Residual(nn.Module):
    """Blocks that add to their input."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The shape of the input is that of the output."""
        for block in self.blocks:
            x = x + block(x)
        return x


class Branches(nn.Module):
    """Convolutions of several sizes beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(4, 4, size, padding=size // 2) for size in (1, 3, 5))
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 4, height, width) to the same."""
        out: torch.Tensor = self.head(torch.cat([F.relu(branch(x)) for branch in self.branches], 1))
        return out


class Skips(nn.Module):
    """A small U-Net: down, up, and a skip around both."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(4, 8, 2, stride=2)
        self.middle = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 4, height, width) to the same."""
        low = self.down(x)
        out: torch.Tensor = x + self.up(low + self.middle(low))
        return out


class EncoderDecoder(nn.Module):
    """torch's Transformer over two sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(_WIDTH, 2, 2, 2, 2 * _WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of (batch, tokens, width) and a target of that shape."""
        return F.mse_loss(self.head(self.model(source, target)), target)


class Words(nn.Module):
    """A language model over a body, whose head is its embedding; some labels are ignored."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(_WORDS, _WIDTH), body
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of (batch, tokens) and labels of that shape; -100 is ignored."""
        out = self.body(self.embed(words))
        out = out[0] if isinstance(out, tuple) else out
        return F.cross_entropy(self.head(out).flatten(0, 1), labels.flatten())


class Experts(nn.Module):
    """Each row goes through one of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, 4)
        self.experts = nn.ModuleList(_perceptron() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) to (batch, width)."""
        weights = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (weights.argmax(-1) == number).to(x.dtype) * weights[:, number]
            out = out + expert(x) * chosen[:, None]
        return out


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))


def _normalized() -> list[nn.Module]:
    return [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(3)]


def _regression(*layers: nn.Module) -> nn.Module:
    return Regression(nn.Sequential(*layers))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(_WIDTH, 2, 2 * _WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def _drawn(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    def draw() -> tuple[torch.Tensor, ...]:
        chance = torch.Generator().manual_seed(1)
        return torch.randn(shape, generator=chance), torch.randn(shape, generator=chance)

    return draw


def _words() -> tuple[torch.Tensor, ...]:
    words = torch.randint(_WORDS, (_ROWS, _TOKENS), generator=torch.Generator().manual_seed(1))
    labels = words.roll(-1, 1)
    labels[: _ROWS // 2, -2:] = -100
    return words, labels


def subjects() -> Iterator[Subject]:
    """The models, one after the other."""
    flat, pictures, tokens = _drawn(_ROWS, _WIDTH), _drawn(_ROWS, 4, _SIZE, _SIZE), _drawn(_ROWS, 6, _WIDTH)
    yield Subject("chain", lambda: _regression(*[_perceptron() for _ in range(3)]), flat, "model.1.2")
    yield Subject("pairs", Pairs, flat, "left.0", "refused")
    yield Subject("branches", lambda: Regression(Branches()), pictures, "model.branches.1")
    yield Subject(
        "batch norm", lambda: Regression(Residual(*_normalized())), pictures, "model.blocks.1.0", "skipped"
    )
    yield Subject("encoder", lambda: _regression(_encoder(), nn.Linear(_WIDTH, _WIDTH)), tokens, "model.1")
    yield Subject("encoder and decoder", EncoderDecoder, tokens, "head")
    yield Subject("recurrent", lambda: Words(nn.LSTM(_WIDTH, _WIDTH, batch_first=True)), _words, "head")
    yield Subject("tied language model", lambda: Words(_encoder()), _words, "head")
    yield Subject("experts", lambda: Regression(Experts()), flat, "model.experts.2.0")
    yield Subject("U-Net", lambda: Regression(Skips()), pictures, "model.middle.2")
