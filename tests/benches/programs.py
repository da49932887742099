"""What a step of compiled stages takes of the host, beside the plain loop and torch.compile.

    plain loop      for each microbatch: forward, loss / microbatches, backward; one device
    torch.compile   the same loop with the whole model compiled by inductor; one device
    written         the code in microbatches over devices, without compile=
    aot_eager       compiled stages over devices
    inductor        the same with fused kernels

Processor time, kernels included: models are so small that most of it is Python. The ways run in turn, and the
least of many steps counts. Layers lie in order, with about equal times on each device ("even").
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import nn

import baechi
from benches.figures import Figures, table_of

_ROWS, _TOKENS, _WIDTH, _WORDS = 8, 12, 32, 101
_WARM_UP = 4
WAYS = "torch.compile", "written", "aot_eager", "inductor"

Built = tuple[nn.Module, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Taken:
    """What a step takes of one model.

    Args:
        model: which one.
        devices: over how many devices its layers lie.
        microbatches: how many.
        loop_s: processor seconds of the plain loop.
        over_loop: by way, by how many times it takes more.
    """

    model: str
    devices: int
    microbatches: int
    loop_s: float
    over_loop: dict[str, float]


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.model(**inputs).loss
        return loss


class _Towers(nn.Module):
    """Two encoders of three layers, whose vectors are compared."""

    def __init__(self) -> None:
        super().__init__()
        layer = partial(nn.TransformerEncoderLayer, _WIDTH, 4, 4 * _WIDTH, 0.0, batch_first=True)
        self.left, self.right = (nn.Sequential(*[layer() for _ in range(3)]) for _ in range(2))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return nn.functional.mse_loss(self.left(left), self.right(right))


def _words() -> torch.Tensor:
    return torch.randint(_WORDS, (_ROWS, _TOKENS))


def _gpt2(transformers: Any) -> Built:
    sizes = {"n_embd": _WIDTH, "n_layer": 12, "n_head": 4, "n_positions": 32, "vocab_size": _WORDS}
    dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropout))
    return _WithLoss(model), {"input_ids": (ids := _words()), "labels": ids}


def _encoder(transformers: Any, kind: str, layers: int) -> Built:
    sizes = {"hidden_size": _WIDTH, "num_hidden_layers": layers, "num_attention_heads": 4}
    more = {"intermediate_size": 4 * _WIDTH, "vocab_size": _WORDS, "max_position_embeddings": 32}
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(config, name, 0.0)
    head = {"Bert": "BertForMaskedLM", "Llama": "LlamaForCausalLM"}[kind]
    return _WithLoss(getattr(transformers, head)(config)), {"input_ids": (ids := _words()), "labels": ids}


def _t5(transformers: Any) -> Built:
    sizes = {"d_model": _WIDTH, "d_kv": 8, "d_ff": 4 * _WIDTH, "num_layers": 3, "num_heads": 4}
    config = transformers.T5Config(**sizes, vocab_size=_WORDS, dropout_rate=0.0, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    return _WithLoss(model), {"input_ids": _words(), "labels": _words()}


def _towers(transformers: Any) -> Built:
    return _Towers(), {name: torch.randn(_ROWS, _TOKENS, _WIDTH) for name in ("left", "right")}


MODELS: dict[str, Callable[[Any], Built]] = {
    "GPT-2, 12 layers": _gpt2,
    "BERT, 6 layers": partial(_encoder, kind="Bert", layers=6),
    "Llama, 6 layers": partial(_encoder, kind="Llama", layers=6),
    "T5, 3 and 3 layers": _t5,
    "two towers of 3 layers": _towers,
}


def measure(*, quick: bool = False) -> Figures:
    """Measure, and show.

    Args:
        quick: one model in four microbatches, a few steps, nothing by inductor.
    """
    if quick:
        found = [taken("two towers of 3 layers", 2, 4, rounds=3, ways=("written", "aot_eager"))]
    else:
        rows = [(name, 2, microbatches) for name in MODELS for microbatches in (4, 8)]
        found = [taken(*row) for row in (*rows, ("GPT-2, 12 layers", 4, 8))]
    return Figures((table(found),), [asdict(one) for one in found])


def taken(
    name: str, devices: int, microbatches: int, *, rounds: int = 30, ways: tuple[str, ...] = WAYS
) -> Taken:
    """Measure one model.

    Args:
        name: a key of `MODELS`.
        devices: over how many devices its layers lie.
        microbatches: how many; they divide the rows.
        rounds: of how many steps the least counts.
        ways: those of `WAYS` that run beside the plain loop.
    """
    import transformers

    def build() -> Built:
        torch.manual_seed(0)
        return MODELS[name](transformers)

    plain, batch = build()
    steps = {"plain loop": partial(_looped, plain, batch, microbatches)}
    cluster = baechi.Cluster.virtual(devices, memory="4GiB")
    graph = baechi.profile(plain, batch, cluster=cluster, source="estimate", microbatches=microbatches)
    pipeline = baechi.pipeline(baechi.place(graph, cluster, "even"), microbatches, "1f1b")
    for way in ways:
        model, _ = build()
        if way == "torch.compile":
            torch._dynamo.reset()
            steps[way] = partial(_looped, torch.compile(model), batch, microbatches)
            continue
        stages = None if way == "written" else baechi.Stages(backend=way)  # type: ignore[arg-type]
        baechi.distribute(model, batch, plan=pipeline, loss_weights="rows", compile=stages, verbose=False)
        steps[way] = partial(_called, model, batch)
    least_s = dict.fromkeys(steps, float("inf"))
    for number in range(_WARM_UP + rounds):
        for way, step in steps.items():
            begun_s = time.process_time()
            step()
            if number >= _WARM_UP:
                least_s[way] = min(least_s[way], time.process_time() - begun_s)
    loop_s = least_s.pop("plain loop")
    return Taken(name, devices, microbatches, loop_s, {way: s / loop_s for way, s in least_s.items()})


def _looped(model: Callable[..., torch.Tensor], batch: dict[str, torch.Tensor], microbatches: int) -> None:
    parts = {key: value.chunk(microbatches) for key, value in batch.items()}
    for number in range(microbatches):
        (model(**{key: each[number] for key, each in parts.items()}) / microbatches).backward()


def _called(model: nn.Module, batch: dict[str, torch.Tensor]) -> None:
    model(**batch).backward()


def table(found: list[Taken]) -> Table:
    """The figures as a table.

    Args:
        found: what was measured.
    """
    ways = list(found[0].over_loop)
    title = "A step in microbatches, times the plain loop's processor time"
    shown = table_of(title, ("model",), ("devices", "microbatches", "loop, ms", *ways))
    for one in found:
        ratios = [f"{one.over_loop[way]:.2f}" for way in ways]
        figures = str(one.devices), str(one.microbatches), f"{1e3 * one.loop_s:.1f}", *ratios
        shown.add_row(one.model, *figures)
    return shown
