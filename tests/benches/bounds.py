"""What bounds a step, at sizes at which people use several devices; the host is charged.

Each way is run dry on four A100 with NVLink: kernels by the datasheet, and what torch and the runtime take of
the host by `HostCosts.usual`. Forward and backward, without the optimizer's step.

    one device      all layers on the first; its memory has no say
    even split      layers in the code's order, divided evenly by memory (the m-topo placer)
    code's order    the placement of `auto`, launched as the code reaches layers
    reordered       the same, launched in the plan's order
    microbatches    the placement of `auto` for four microbatches, or one for each row
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from baechi import zoo
from baechi.errors import BaechiError
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.timeline import Timeline
from baechi.report import host_share
from baechi.verbs.dry_running import dry_run
from baechi.verbs.planning import place
from baechi.verbs.profiling import profile
from benches.figures import Figures, table_of
from benches.models.unet import UNet

WAYS = ("one device", "even split", "code's order", "reordered", "microbatches")
_PARTS = 4

Example = tuple[nn.Module, Any]


@dataclass(frozen=True)
class Row:
    """A model, run in one way.

    Args:
        model: its name.
        way: how it runs.
        step_s: forward and backward.
        host_s: for how long the host works for them.
        busiest_s: for how long the busiest device computes.
        why_not: why there is no figure; empty if there is one.
    """

    model: str
    way: str
    step_s: float = 0.0
    host_s: float = 0.0
    busiest_s: float = 0.0
    why_not: str = ""

    @property
    def bound(self) -> str:
        """What works for most of the step: the host, the busiest device, or neither (they wait)."""
        most_s = max(self.host_s, self.busiest_s)
        if most_s < 0.8 * self.step_s:
            return "waiting"
        return "host" if self.host_s > self.busiest_s else "device"

    @property
    def cell(self) -> str:
        """It as text."""
        if self.why_not:
            return "-"
        host, busy = (
            f"{100 * min(1.0, part_s / self.step_s):.0f}" for part_s in (self.host_s, self.busiest_s)
        )
        return f"{self.step_s * 1e3:.1f} {self.bound} ({host}, {busy})"


def measure(*, quick: bool = False) -> Figures:
    """Run dry, and show. Each row is printed to the standard error when it is there.

    Args:
        quick: one small model.
    """
    console, rows = Console(stderr=True), list[Row]()
    for row in bounds(quick=quick):
        rows.append(row)
        console.print(f"{row.model}, {row.way}: {row.cell} {row.why_not}", highlight=False, soft_wrap=True)
    return Figures((table(rows),), [asdict(row) for row in rows])


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was run.
    """
    title = (
        "Milliseconds of a step on four A100, what bounds it, and percent of it that the host and the "
        "busiest device work"
    )
    shown = table_of(title, ("model",), WAYS)
    for model in dict.fromkeys([row.model for row in rows]):
        cells = {row.way: row.cell for row in rows if row.model == model}
        shown.add_row(model, *[cells.get(way, "-") for way in WAYS])
    return shown


def bounds(*, quick: bool = False) -> Iterator[Row]:
    """Run one model after the other.

    Args:
        quick: one small model.

    Yields:
        A row for each way.
    """
    made = Cluster.uniform(4, like="A100-80GB", link="nvlink")
    cluster = replace(made, host=HostCosts.usual())
    for name, make in models(quick=quick).items():
        model, inputs = make()
        model.train()
        graph = profile(model, inputs, cluster=cluster, training=True, source="estimate")
        for way in WAYS:
            try:
                timeline = _ran(model, inputs, graph, cluster, way)
            except BaechiError as error:
                yield Row(name, way, why_not=str(error).partition("\n")[0])
                continue
            busiest_s = max(map(timeline.busy_s, cluster.names))
            yield Row(name, way, timeline.makespan_s, host_share.worked_s(timeline), busiest_s)


def _ran(model: nn.Module, inputs: Any, graph: LayerGraph, cluster: Cluster, way: str) -> Timeline:
    if way == "microbatches":
        given = inputs.values() if isinstance(inputs, dict) else inputs
        number = min([_PARTS, *[len(value) for value in given if isinstance(value, torch.Tensor)]])
        asked: dict[str, Any] = {"training": True, "source": "estimate", "microbatches": number}
        graph = profile(model, inputs, cluster=cluster, **asked)
        return dry_run(model, inputs, place(graph, cluster, microbatches=number, effort=0))
    if way == "one device":
        roomy = replace(cluster.devices[0], memory_bytes=2**50)
        return dry_run(model, inputs, place(graph, replace(cluster, devices=(roomy,)), "single"))
    placer = "m-topo" if way == "even split" else "auto"
    plan = place(graph, cluster, placer, effort=0) if placer == "auto" else place(graph, cluster, placer)
    return dry_run(model, inputs, plan, reorder=way == "reordered")


def models(*, quick: bool = False) -> dict[str, Callable[[], Example]]:
    """What makes each model, on the `meta` device.

    Args:
        quick: one small model.
    """
    if quick:
        return {"transformer, small": partial(zoo.MODELS["transformer"], "small", None, device="meta")}
    found: dict[str, Callable[[], Example]] = {
        "Inception-v3, 64": partial(zoo.MODELS["inception-v3"], "full", 64, device="meta"),
        "GNMT, 128": partial(zoo.MODELS["gnmt"], "full", 128, device="meta"),
        "U-Net, 256 x 256, 64": _unet,
    }
    if find_spec("transformers") is not None:
        found |= {name: partial(_of_transformers, make) for name, make in _LARGE.items()}
    return found


def _unet() -> Example:
    with torch.device("meta"):
        return UNet(), (torch.zeros(64, 3, 256, 256),)


def _of_transformers(make: Callable[[Any], Example]) -> Example:
    with torch.device("meta"):
        return make(import_module("transformers"))


def _words(batch: int, tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def _gpt2(transformers: Any, *, batch: int, tokens: int, dtype: torch.dtype, **sizes: int) -> Example:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **sizes))
    return model.to(dtype), _words(batch, tokens)


def _llama(transformers: Any) -> Example:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False))
    return model.to(torch.bfloat16), _words(4, 2048)


def _t5(transformers: Any) -> Example:
    sizes = {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32}
    config = transformers.T5Config(decoder_start_token_id=0, use_cache=False, **sizes)
    return transformers.T5ForConditionalGeneration(config).to(torch.bfloat16), _words(8, 512)


def _mixtral(transformers: Any) -> Example:
    sizes = {"hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 16}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(use_cache=False, **sizes, **heads))
    return model.to(torch.bfloat16), _words(4, 1024)


def _clip(transformers: Any) -> Example:
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    image = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
        "patch_size": 14, "image_size": 224,
    }  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=768)
    ids, pixels = torch.zeros(64, 77, dtype=torch.long), torch.zeros(64, 3, 224, 224, dtype=torch.bfloat16)
    inputs = {"input_ids": ids, "pixel_values": pixels, "return_loss": True}
    return transformers.CLIPModel(config).to(torch.bfloat16), inputs


_LARGE: dict[str, Callable[[Any], Example]] = {
    "GPT-2, 2 x 128": partial(_gpt2, batch=2, tokens=128, dtype=torch.float32),
    "CLIP-L/14, 64, bf16": _clip,
    "Llama-7B, 4 x 2048, bf16": _llama,
    "GPT-2-XL, 8 x 1024, bf16": partial(
        _gpt2, batch=8, tokens=1024, dtype=torch.bfloat16, n_embd=1600, n_layer=48, n_head=25
    ),
    "T5-3B, 8 x 512, bf16": _t5,
    "Mixtral-like, 4 x 1024, bf16": _mixtral,
}
