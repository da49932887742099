"""The models that are pipelined, each with its loss, all on the `meta` device, and the clusters."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from baechi import zoo
from baechi.records.cluster import Cluster
from baechi.records.inputs import Inputs
from benches.models.clusters import FULL, HALF, LINKS
from benches.models.small import Example, Maker, makers

OPTIMIZER = "adam"

_BATCHES = {
    "towers": 32_768,
    "skips": 32_768,
    "transformer": 256,
    "gnmt": 512,
    "inception-v3": 128,
    "bert-large": 64,
    "t5-large": 32,
    "clip-large": 128,
    "gpt2": 32,
    "llama-like": 32,
}
_WIDTH, _BLOCKS, _FEW_ROWS = 1024, 16, 64


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return made


def _blocks(count: int, width: int) -> nn.ModuleList:
    return nn.ModuleList([_Block(width) for _ in range(count)])


class Towers(nn.Module):
    """Two chains of blocks side by side, and a head behind both.

    Args:
        blocks: of each chain.
        width: features.
    """

    def __init__(self, blocks: int = _BLOCKS // 2, width: int = _WIDTH) -> None:
        super().__init__()
        self.one, self.other = _blocks(blocks, width), _blocks(blocks, width)
        self.head = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both chains on the same input, then the loss."""
        one, other = x, x
        for block in self.one:
            one = block(one)
        for block in self.other:
            other = block(other)
        loss: torch.Tensor = self.head(torch.cat([one, other], -1)).square().mean()
        return loss


class Skips(nn.Module):
    """A chain of blocks whose first half hands each output to the block opposite as well.

    Args:
        blocks: of each half.
        width: features.
    """

    def __init__(self, blocks: int = _BLOCKS // 2, width: int = _WIDTH) -> None:
        super().__init__()
        self.down, self.up = _blocks(blocks, width), _blocks(blocks, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Down, up, then the loss."""
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        for block in self.up:
            x = block(x + kept.pop())
        return x.square().mean()


class WithLoss(nn.Module):
    """A model that returns its loss and nothing else.

    Args:
        model: it returns an object with a loss, or scores of classes.
        classifies: whether it returns scores; the loss is then the cross entropy of `labels`.
    """

    def __init__(self, model: nn.Module, *, classifies: bool) -> None:
        super().__init__()
        self.model, self.classifies = model, classifies

    def forward(self, *inputs: torch.Tensor, labels: torch.Tensor, **named: Any) -> torch.Tensor:
        """Call the model.

        Args:
            *inputs, **named: its inputs.
            labels: the classes.
        """
        if self.classifies:
            scores = self.model(*inputs, **named)
            return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss: torch.Tensor = self.model(*inputs, labels=labels, **named).loss
        return loss


def subjects(*, quick: bool, only: Collection[str] = ()) -> Iterator[tuple[str, Example]]:
    """The models with their whole batches, as `sized` has them."""
    for name, batch, make in sized(quick=quick, only=only):
        yield name, make(batch)


def sized(*, quick: bool, only: Collection[str] = ()) -> Iterator[tuple[str, int, Callable[[int], Example]]]:
    """The models, of any batch.

    Args:
        quick: towers and skips alone, small.
        only: how their names begin; all unless given.

    Yields:
        A name, the usual batch, and what makes the model in training mode with its inputs. Those of
        transformers only if it is installed.
    """
    blocks = 4 if quick else _BLOCKS // 2
    made: dict[str, Callable[[int], Example]] = {
        "towers": partial(_own, Towers, blocks),
        "skips": partial(_own, Skips, blocks),
    }
    if not quick:
        made |= {name: partial(_with_loss, maker) for name, maker in _makers()}
    unknown = [begin for begin in only if not any(name.startswith(begin) for name in made)]
    if unknown:
        known = ", ".join(made)
        raise ValueError(f"there is no model {', '.join(sorted(unknown))}: there are {known}")
    for name, make in made.items():
        if name.startswith(tuple(only) or ""):
            yield name, _FEW_ROWS if quick else _BATCHES[name], make


def _own(kind: Callable[[int], nn.Module], blocks: int, batch: int) -> Example:
    with torch.device("meta"):
        return kind(blocks).train(), torch.zeros(batch, _WIDTH)


def _with_loss(maker: Maker, batch: int) -> Example:
    """The model returning its loss alone. CLIP's `labels` are not given: its loss needs none."""
    model, inputs = maker(batch)
    if isinstance(inputs, dict):
        return (WithLoss(model, classifies=False), inputs) if "labels" in inputs else (model, inputs)
    labels = inputs[1] if len(inputs) > 1 else torch.zeros(len(inputs[0]), dtype=torch.long, device="meta")
    return WithLoss(model, classifies=True), Inputs(*inputs, labels=labels)


def _makers() -> Iterator[tuple[str, Maker]]:
    for name, build in zoo.MODELS.items():
        yield name, partial(build, "full", device="meta")
    yield from [(name, make) for name, make in makers() if name not in zoo.MODELS]
    if find_spec("transformers") is not None:
        yield "gpt2", _gpt2
        yield "llama-like", _llama


def _gpt2(batch: int | None = None, device: str = "meta") -> Example:
    transformers: Any = import_module("transformers")
    with torch.device(device):
        ids = torch.zeros(batch or 32, 1024, dtype=torch.long)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).train()
    return model, {"input_ids": ids, "labels": ids}


def _llama(batch: int | None = None, device: str = "meta") -> Example:
    transformers: Any = import_module("transformers")
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32}
    config = transformers.LlamaConfig(num_hidden_layers=22, num_key_value_heads=4, vocab_size=32_000, **sizes)
    with torch.device(device):
        ids = torch.zeros(batch or 32, 1024, dtype=torch.long)
        model = transformers.LlamaForCausalLM(config).train()
    return model, {"input_ids": ids, "labels": ids}


def clusters(*, quick: bool) -> Iterator[tuple[str, Cluster]]:
    """Two, four and eight devices, equal or half of them half as good, by NVLink or PCIe.

    Args:
        quick: two of them alone.

    Yields:
        A name and the cluster.
    """
    for count in (2,) if quick else (2, 4, 8):
        for equal in (True, False):
            for link in ("NVLink",) if quick else ("NVLink", "PCIe"):
                kinds = [FULL if equal or number < count // 2 else HALF for number in range(count)]
                devices = tuple([replace(kind, name=f"device:{n}") for n, kind in enumerate(kinds)])
                name = f"{count} {'equal' if equal else 'unequal'}, {link}"
                yield name, Cluster(devices, link=LINKS[link])
