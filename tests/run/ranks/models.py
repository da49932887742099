"""Models that are trained over ranks; each is small, and has something that may go wrong there."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Built = tuple[nn.Module, Callable[[], dict[str, Tensor]]]
"""A model, and what makes a batch for it."""

ROWS, WIDTH, WORDS, LENGTH = 12, 8, 11, 4


class Residual(nn.Module):
    """A block whose input is added to what it computes."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down, self.drop = nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.drop(self.down(self.up(self.norm(x)).relu()))
        return found


class Tied(nn.Module):
    """An embedding that is the head as well, dropouts, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, WIDTH), nn.BatchNorm1d(WIDTH)
        self.blocks = nn.ModuleList([Residual(0.2) for _ in range(3)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        hidden = self.table(x)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        logits = self.head(hidden)
        return {"loss": cross_entropy(logits.flatten(0, 1), y.flatten()), "logits": logits}


class Towers(nn.Module):
    """Two stacks that meet at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(*[Residual() for _ in range(2)])
        self.right = nn.Sequential(*[Residual() for _ in range(2)])
        self.head = nn.Linear(2 * WIDTH, WORDS)

    def forward(self, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        both = torch.cat([self.left(x), self.right(z)], -1).mean(1)
        return cross_entropy(self.head(both), y)


class Filter(nn.Module):
    """Complex numbers times complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Waves(nn.Module):
    """Layers with complex weights between Fourier transforms: complex numbers go forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.filters = nn.ModuleList([Filter() for _ in range(3)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        waves = torch.fft.rfft(self.up(x))
        for number, layer in enumerate(self.filters):
            waves = layer(waves) if number != 1 else layer(waves).conj()
        return cross_entropy(self.head(torch.fft.irfft(waves, n=WIDTH)).mean(1), y)


class Skips(nn.Module):
    """Encoder and decoder with a connection at each level, and one embedding for both and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.ModuleList([Residual() for _ in range(2)])
        self.decoder = nn.ModuleList([Residual() for _ in range(2)])
        self.mixes = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        hidden, kept = self.table(x), []
        for block in self.encoder:
            hidden = block(hidden)
            kept.append(hidden)
        out = self.table(z)
        for block, mix in zip(self.decoder, self.mixes, strict=True):
            out = block(mix(torch.cat([out, kept.pop()], -1)))
        return cross_entropy(self.head(out).flatten(0, 1), y.flatten())


class Convolutions(nn.Module):
    """Convolutions with batch norms, whose statistics each microbatch writes."""

    def __init__(self) -> None:
        super().__init__()
        rows: list[nn.Module] = []
        for width in (3, 6, 6):
            rows += [nn.Conv2d(width, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
        self.body, self.head = nn.Sequential(*rows), nn.Linear(6, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.head(self.body(x).mean((2, 3))), y)


class Planes(nn.Module):
    """Images with channels last: a kernel of group norms takes gradients that lie as its input does.

    A gradient of the skip is a part of what the last convolution gives back, so it has gaps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.up, self.head = nn.Conv2d(8, 4, 3, padding=1), nn.Linear(4, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kept = self.down(x)
        hidden = nn.functional.interpolate(self.middle(nn.functional.max_pool2d(kept, 2)), scale_factor=2)
        return cross_entropy(self.head(self.up(torch.cat([hidden, kept], 1)).mean((2, 3))), y)


def planes() -> Tensor:
    images = torch.randn(ROWS, 3, 6, 6, dtype=torch.float64)
    return images.contiguous(memory_format=torch.channels_last)


class Drops(nn.Module):
    """Dropouts alone: each rank draws what one process would."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Residual(0.3) for _ in range(4)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.head(self.blocks(x).mean(1)), y)


class Experts(nn.Module):
    """Experts whose outputs a gate weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, WORDS)
        self.experts = nn.ModuleList([Residual() for _ in range(3)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        found = torch.stack([one(x) for one in self.experts], -1)
        return cross_entropy(self.head((found * weights.unsqueeze(-2)).sum(-1)).mean(1), y)


class Masked(nn.Module):
    """Recurrent layers, a mask that several layers read, and labels that do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rows = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.blocks = nn.ModuleList([Residual() for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.rows(self.table(x))[0]
        for block in self.blocks:
            near = (hidden @ hidden.transpose(1, 2)).masked_fill(~self.mask, -1e9).softmax(-1)
            hidden = block(near @ hidden)
        return cross_entropy(self.head(hidden).flatten(0, 1), y.flatten(), ignore_index=0)


class Counts(nn.Module):
    """Buffers that its own code writes between layers: one in place, one assigned (`+=`)."""

    mean: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList([Residual() for _ in range(2)])
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.training:
            self.mean.lerp_(hidden.detach().mean((0, 1)), 0.25)
        for block in self.blocks:
            hidden = block(hidden - self.mean)
        self.calls += 1
        return cross_entropy(self.head(hidden).mean(1), y)


def words() -> Tensor:
    return torch.randint(WORDS, (ROWS, LENGTH))


def rows() -> Tensor:
    return torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64)


def labels() -> Tensor:
    return torch.randint(WORDS, (ROWS,))


def of_transformers(kind: str, config: str, batch: Callable[[], dict[str, Tensor]], **options: Any) -> Built:
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**options)).double()
    return LossAlone(model), batch


class LossAlone(nn.Module):
    """A model of transformers, of which the loss is taken."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        loss: Tensor = self.model(**inputs).loss
        return loss


def ids() -> dict[str, Tensor]:
    found = words()
    return {"input_ids": found, "labels": found}


def pixels() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(ROWS, 3, 8, 8, dtype=torch.float64), "labels": labels()}


SMALL = {"vocab_size": WORDS}
MADE: dict[str, Callable[[], Built]] = {
    "tied": lambda: (Tied(), lambda: {"x": words(), "y": words()}),
    "towers": lambda: (Towers(), lambda: {"x": rows(), "z": rows(), "y": labels()}),
    "skips": lambda: (Skips(), lambda: {"x": words(), "z": words(), "y": words()}),
    "convolutions": lambda: (
        Convolutions(),
        lambda: {"x": torch.randn(ROWS, 3, 6, 6, dtype=torch.float64), "y": labels()},
    ),
    "drops": lambda: (Drops(), lambda: {"x": rows(), "y": labels()}),
    "experts": lambda: (Experts(), lambda: {"x": rows(), "y": labels()}),
    "gpt2": lambda: of_transformers(
        "GPT2LMHeadModel", "GPT2Config", ids, n_embd=8, n_layer=2, n_head=2, n_positions=8, **SMALL
    ),
    "t5": lambda: of_transformers(
        *("T5ForConditionalGeneration", "T5Config", ids),
        **{"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, **SMALL},
        decoder_start_token_id=0,
    ),
    "llama": lambda: of_transformers(
        *("LlamaForCausalLM", "LlamaConfig", ids),
        **{"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, **SMALL},
        num_attention_heads=2,
    ),
    "vit": lambda: of_transformers(
        *("ViTForImageClassification", "ViTConfig", pixels),
        **{"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_labels": WORDS},
        **{"image_size": 8, "patch_size": 4, "num_attention_heads": 2},
    ),
    "waves": lambda: (Waves(), lambda: {"x": rows(), "y": labels()}),
    "counts": lambda: (Counts(), lambda: {"x": rows(), "y": labels()}),
    "planes": lambda: (Planes(), lambda: {"x": planes(), "y": labels()}),
}


def built(name: str) -> Built:
    """A model in training, in double precision."""
    torch.manual_seed(0)
    model, batch = MADE[name]()
    return model.double().train(), batch
