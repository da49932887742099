"""Small hand-written models, each with a feature that is hard to place on several devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from architectures.base import VOCABULARY, Architecture, noise, seeded, token_ids


class _TwoBranches(nn.Module):
    """Two convolutional branches, normalised and rectified in place, then concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = self._layer(3, 8, 3)
        self.narrow = self._layer(8, 4, 1)
        self.wide = nn.Sequential(self._layer(8, 4, 3), self._layer(4, 4, 3))
        self.head = nn.Linear(8, 5)

    def _layer(self, inputs: int, outputs: int, kernel: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        stem = self.stem(images)
        both = torch.cat([self.narrow(stem), self.wide(stem)], dim=1)
        result: Tensor = self.head(F.adaptive_avg_pool2d(both, 1).flatten(1))
        return result


class _Residual(nn.Module):
    """A residual block that adds in place and rectifies with a module it does not own alone."""

    def __init__(self, relu: nn.Module) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(8)
        self.relu = relu

    def forward(self, images: Tensor) -> Tensor:
        identity = images
        out = self.norm(self.second(self.relu(self.first(images))))
        out += identity
        result: Tensor = self.relu(out)
        return result


class _SharedRelu(nn.Module):
    """Residual blocks that share one in-place rectifier."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.blocks = nn.Sequential(*(_Residual(self.relu) for _ in range(3)))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.relu(self.stem(images))).mean((2, 3)))
        return result


class _Translator(nn.Module):
    """Torch's own encoder and decoder under causal and padding masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).isinf()
        decoded = self.transformer(
            self.embedding(source),
            self.embedding(target),
            tgt_mask=causal.to(target.device),
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
        )
        result: Tensor = self.head(decoded)
        return result


class _ClassToken(nn.Module):
    """Bare parameters, read in forward, around attention and an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.class_token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 17, 16))
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.projection = nn.Parameter(torch.randn(16, 5))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        tokens = tokens + self.positions
        attended, weights = self.attention(tokens, tokens, tokens)
        pooled = (tokens + self.scale * attended)[:, 0]
        return torch.einsum("bi,io->bo", pooled, self.projection), weights


class _CellLoop(nn.Module):
    """One cell called once a time step by a Python loop."""

    start: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.cell = nn.GRUCell(16, 24)
        self.head = nn.Linear(24, VOCABULARY)
        self.register_buffer("start", torch.zeros(24))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.start.expand(len(ids), -1)
        steps = []
        for step in self.embedding(ids).unbind(1):
            hidden = self.cell(step, hidden)
            steps.append(hidden)
        return self.head(torch.stack(steps, dim=1)), hidden


class _TiedAutoencoder(nn.Module):
    """Weights of two layers used a second time, transposed, by functional calls."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 24)
        self.encoder = nn.Linear(24, 12)
        self.norm = nn.LayerNorm(12)

    def forward(self, ids: Tensor) -> Tensor:
        code = self.norm(torch.tanh(self.encoder(self.embedding(ids))))
        decoded = F.linear(code, self.encoder.weight.t())
        return F.linear(decoded, self.embedding.weight)


@dataclasses.dataclass
class Part:
    """A named tensor, as a model may return it among others."""

    label: str
    values: Tensor
    scale: float | None = None


class _Nested(nn.Module):
    """Keyword-only and absent inputs, and outputs in containers of containers."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.bias = nn.Linear(8, 6), nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(
        self, *, pair: dict[str, list[Tensor]], bias: Tensor | None = None, scale: float = 1.0
    ) -> dict[str, Any]:
        left, right = self.left(pair["both"][0]), self.right(pair["both"][1])
        mixed = self.bias(left * right if bias is None else left + bias) * scale
        return {
            "parts": (Part("left", left), Part("right", right, scale)),
            "mixed": [mixed, {"none": None, "shape": tuple(mixed.shape)}],
            "detached": mixed.detach(),
        }


class _InPlaceViews(nn.Module):
    """Slices and other views of activations written in place between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.middle, self.head = nn.Linear(8, 32), nn.Linear(16, 16), nn.Linear(8, 5)
        self.first = nn.Parameter(torch.randn(16))

    def forward(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        wide = self.wide(values)
        content = wide[..., 16:]
        content[:, 0] = self.first
        content.masked_fill_(mask[..., None], 0.25)
        hidden = self.middle(wide[..., :16].sigmoid() * content)
        hidden.add_(content).mul_(0.5)
        folded = hidden.view(len(values), -1, 2, 8).transpose(1, 2)
        folded[:, 1].clamp_(min=-1.0, max=1.0)
        hidden[:, -1] += wide[:, 0, :16].detach()
        left, right = hidden.chunk(2, dim=-1)
        return self.head(left).relu_(), right


class _Branching(nn.Module):
    """Layers chosen, and repeated, according to the values that reach them."""

    def __init__(self) -> None:
        super().__init__()
        self.positive, self.negative, self.step = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.positive(values) if values.sum() > 0 else self.negative(values)
        if hidden.sum() > 0:
            hidden = self.negative(hidden)
        steps = 0
        while hidden.norm().item() < 40 and steps < 10:
            hidden, steps = hidden + self.step(hidden).abs(), steps + 1
        result: Tensor = hidden
        return result


class _Siamese(nn.Module):
    """One encoder with running statistics, called on two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Sequential(nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 1))

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.encoder(left), self.encoder(right)
        return self.head((first - second).abs()), F.cosine_similarity(first, second)


class _UNet(nn.Module):
    """Long skip connections between a shrinking and a growing path."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(self._layer(i, o) for i, o in [(3, 4), (4, 8), (8, 16)])
        self.up = nn.ModuleDict({"8": self._layer(24, 8), "16": self._layer(12, 4)})
        self.head = nn.Conv2d(4, 2, 1)

    def _layer(self, inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU())

    def forward(self, images: Tensor) -> Tensor:
        skips, hidden = [], images
        for layer in self.down:
            hidden = layer(hidden)
            skips.append(hidden)
            hidden = F.max_pool2d(hidden, 2)
        hidden = skips.pop()
        for skip in reversed(skips):
            larger = F.interpolate(hidden, skip.shape[-2:], mode="bilinear", align_corners=False)
            hidden = self.up[str(skip.shape[-1])](torch.cat([larger, skip], dim=1))
        result: Tensor = self.head(hidden)
        return result


class _RecurrentStack(nn.Module):
    """Recurrent layers whose final states start those of the next part."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.encoder = nn.LSTM(16, 12, num_layers=2, batch_first=True, dropout=0.1)
        self.decoder = nn.LSTM(16, 12, num_layers=2, batch_first=True, dropout=0.1)
        self.cell = nn.LSTMCell(12, 12)
        self.head = nn.Linear(12, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        _, states = self.encoder(self.embedding(source))
        decoded, (hidden, memory) = self.decoder(self.embedding(target), states)
        last = self.cell(decoded[:, -1], (hidden[-1], memory[-1]))
        return self.head(decoded + last[0][:, None]), last


class _Buffers(nn.Module):
    """A frozen layer, a layer that is never called and buffers that every call updates."""

    steps: Tensor
    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16).requires_grad_(False)
        self.layer, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(16), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        self.steps += 1
        hidden = self.layer(self.embedding(ids))
        self.average = 0.9 * self.average + 0.1 * hidden.detach().mean((0, 1))
        result: Tensor = (hidden - self.average) * (1 / self.steps)
        return result


class _WeightNorm(nn.Module):
    """Layers whose weights every call computes from other parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(4, 8, 3, padding=1))
        self.second = weight_norm(nn.Linear(8, 8))
        self.third = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))

    def forward(self, signal: Tensor) -> Tensor:
        hidden = self.first(signal).transpose(1, 2)
        for _ in range(2):
            hidden = torch.tanh(self.second(hidden))
        result: Tensor = self.third(hidden)
        return result


class _Checkpointed(nn.Module):
    """Blocks with dropout that the backward pass computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)
        )

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.stem(values)
        for block in self.blocks:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=False)
        result: Tensor = hidden
        return result


class _Quantise(torch.autograd.Function):
    """Rounding to steps whose gradient passes straight through within a limit."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(values, step)
        return torch.round(values / step) * step

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        values, step = ctx.saved_tensors
        inside = gradients[0] * (values.abs() < 1.5)
        return inside, (inside * (torch.round(values / step) - values / step)).sum()


class _CustomFunction(nn.Module):
    """A function with a backward pass of its own between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.step = nn.Parameter(torch.tensor(0.125))

    def forward(self, values: Tensor) -> Tensor:
        rounded = _Quantise.apply(self.first(values), self.step)  # type: ignore[no-untyped-call]
        result: Tensor = self.second(rounded)
        return result


class _Experts(nn.Module):
    """Rows gathered for each expert, which may get none, and added back where they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 5, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(5)
        )

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        rows = values.reshape(-1, 8)
        logits = self.router(rows)
        weights, chosen = logits.softmax(-1).topk(2)
        mixed = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == index)
            if len(row):
                output = expert(rows.index_select(0, row)) * weights[row, slot, None]
                mixed.index_add_(0, row, output)
        return mixed.view_as(values), logits


class _OddLayers(nn.Module):
    """Layers that few models have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        self.bag = nn.EmbeddingBag(VOCABULARY, 8, mode="mean")
        self.bilinear = nn.Bilinear(8, 8, 12)
        self.prelu, self.glu, self.norm = nn.PReLU(12), nn.GLU(dim=1), nn.InstanceNorm1d(6)
        self.local, self.dropout = nn.LocalResponseNorm(2), nn.FeatureAlphaDropout(0.2)
        self.widen, self.shuffle = nn.ConvTranspose1d(6, 4, 2, stride=2), nn.ChannelShuffle(2)
        self.head = nn.LazyLinear(3)
        self(token_ids(1, 10))

    def forward(self, ids: Tensor) -> Tensor:
        words = self.embedding(ids)
        bags = self.bag(ids)[:, None].expand_as(words).contiguous()
        mixed = self.prelu(self.bilinear(words, bags).transpose(1, 2))
        widened = self.widen(self.dropout(self.norm(self.glu(mixed))))
        result: Tensor = self.head(self.local(self.shuffle(widened)).flatten(1))
        return result


class _Double(nn.Module):
    """Double precision throughout, with one reduction to single precision and back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm = nn.LayerNorm(16)
        self.double()

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.norm(self.first(values)).tanh()
        return self.second(hidden), hidden.float().exp()


def _images() -> dict[str, Any]:
    return {"images": noise(2, 3, 16, 16)}


def _ids() -> dict[str, Any]:
    return {"ids": token_ids(2, 10)}


def _values() -> dict[str, Any]:
    return {"values": noise(2, 6, 8)}


def _source_and_target() -> dict[str, Any]:
    source, target = token_ids(2, 10), token_ids(2, 7)
    source[0, -4:] = target[1, -2:] = 0
    return {"source": source, "target": target}


def _pair() -> dict[str, Any]:
    return {"pair": {"both": [noise(2, 8), noise(2, 4)]}, "bias": None, "scale": 0.5}


OWN: tuple[Architecture, ...] = (
    Architecture("two_branches", seeded(_TwoBranches), _images),
    Architecture("shared_relu", seeded(_SharedRelu), _images),
    Architecture("torch_transformer", seeded(_Translator), _source_and_target),
    Architecture("class_token", seeded(_ClassToken), _images),
    Architecture("cell_loop", seeded(_CellLoop), _ids),
    Architecture("tied_autoencoder", seeded(_TiedAutoencoder), _ids),
    Architecture("nested", seeded(_Nested), _pair),
    Architecture(
        "in_place_views",
        seeded(_InPlaceViews),
        lambda: _values() | {"mask": noise(2, 6) > 1},
    ),
    Architecture("branching", seeded(_Branching), _values),
    Architecture(
        "siamese",
        seeded(_Siamese),
        lambda: {"left": noise(2, 3, 16, 16), "right": noise(2, 3, 16, 16, seed=2)},
    ),
    Architecture("u_net", seeded(_UNet), _images),
    Architecture("recurrent_stack", seeded(_RecurrentStack), _source_and_target),
    Architecture("buffers", seeded(_Buffers), _ids),
    Architecture("weight_norm", seeded(_WeightNorm), lambda: {"signal": noise(2, 4, 6)}),
    Architecture("checkpointed", seeded(_Checkpointed), _values),
    Architecture("custom_function", seeded(_CustomFunction), _values),
    Architecture("experts", seeded(_Experts), _values),
    Architecture("odd_layers", seeded(_OddLayers), _ids),
    Architecture("double", seeded(_Double), lambda: {"values": noise(2, 8).double()}),
)
