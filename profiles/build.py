"""Writes the shipped graphs and clusters: run it in this folder's checkout, `python profiles/build.py`.

The graphs are captured on the `meta` device and estimated from datasheets; nothing was measured. Needs
transformers. What made a graph stands in its `graph["provenance"]`, what a cluster is in its "about".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import baechi
from baechi import Cluster, Device, Link, zoo
from baechi.records.datasheet import datasheet
from baechi.records.graph import SECONDS

HERE = Path(__file__).parent
KINDS = ("H100-80GB", "A100-80GB", "RTX-4090", "V100-32GB")
PCIE4 = Link(latency_s=10e-6, bytes_per_s=25e9)
PCIE3 = Link(latency_s=10e-6, bytes_per_s=12e9)


def models() -> Iterator[tuple[str, Any, Any, str]]:
    """Name, model on `meta`, inputs, and what it is."""
    for name, build in zoo.MODELS.items():
        model, inputs = build("full", device="meta")
        shapes = ", ".join(str(tuple(one.shape)) for one in inputs)
        yield name, model, inputs, f"baechi.zoo {name}, full size, inputs {shapes}"
    ids = torch.zeros(16, 512, dtype=torch.long)
    bert = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    yield "bert-large", BertModel(bert), ids, "BertModel, 24 layers of 1,024, 16 sequences of 512"
    t5 = T5Config(d_model=1024, d_kv=128, d_ff=16384, num_layers=24, num_heads=32)
    both = {"input_ids": ids[:8], "decoder_input_ids": ids[:8], "use_cache": False}
    yield (
        "t5-3b",
        T5ForConditionalGeneration(t5),
        both,
        "T5, 24 + 24 layers of 1,024, inner 16,384, 8 pairs of 512",
    )
    text = dict(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12)
    vision = dict(
        hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_hidden_layers=24, patch_size=14
    )
    clip = CLIPConfig(text_config=text, vision_config=vision, projection_dim=768)
    pairs = {"input_ids": ids[:, :77].repeat(4, 1), "pixel_values": torch.zeros(64, 3, 224, 224)}
    yield (
        "clip-l",
        CLIPModel(clip),
        pairs,
        "CLIP, vision 24 layers of 1,024 on patches of 14, text 12 of 768, 64 pairs",
    )
    chat = {"input_ids": ids[:4], "use_cache": False}
    yield "llama-2-7b", LlamaForCausalLM(LlamaConfig()), chat, "Llama, 32 layers of 4,096, 4 sequences of 512"
    mixtral = MixtralConfig(num_hidden_layers=8)
    yield (
        "mixtral-like",
        MixtralForCausalLM(mixtral).to(torch.bfloat16),
        chat,
        "Mixtral, 8 of 32 layers of 4,096, 8 experts, 4 x 512",
    )


def clusters() -> Iterator[tuple[str, Cluster, str]]:
    """Name, cluster, and what it is."""
    for n, kind in ((2, "A100-80GB"), (4, "A100-80GB"), (8, "A100-80GB"), (8, "H100-80GB"), (4, "V100-32GB")):
        yield f"{n}x{kind}-nvlink", Cluster.uniform(n, like=kind), "a server, each pair by NVLink"
    for n in (2, 4):
        yield (
            f"{n}xRTX-4090-pcie",
            Cluster.uniform(n, like="RTX-4090", link=PCIE4),
            "a workstation, PCIe 4 x16",
        )
    yield "desktop-4090-3090", _mixed(PCIE4, "RTX-4090", "RTX-3090"), "a desktop, PCIe 4 x16"
    yield "desktop-4090-3090-3090", _mixed(PCIE3, "RTX-4090", "RTX-3090", "RTX-3090"), "a desktop, PCIe 3 x16"
    yield "server-a100-l4", _mixed(PCIE4, "A100-40GB", "A100-40GB", "L4", "L4"), "a mixed server, PCIe 4 x16"


def _mixed(link: Link, *kinds: str) -> Cluster:
    devices = [Device(f"device:{index}", kind, **datasheet(kind)) for index, kind in enumerate(kinds)]
    return Cluster(tuple(devices), link=link)


def _rounded(graph: baechi.LayerGraph) -> None:
    """Four digits are more than an estimate knows."""
    for _, data in graph.nodes(data=True):
        for name in SECONDS:
            if isinstance(data.get(name), dict):
                data[name] = {kind: float(f"{seconds:.4g}") for kind, seconds in data[name].items()}


def build() -> None:
    """Write all files."""
    every_kind = Cluster(tuple(Device(kind, kind, **datasheet(kind)) for kind in KINDS))
    (HERE / "graphs").mkdir(exist_ok=True)
    (HERE / "clusters").mkdir(exist_ok=True)
    with torch.device("meta"):
        for name, model, inputs, what in models():
            training = name not in ("llama-2-7b", "mixtral-like")
            graph = baechi.profile(model, inputs, cluster=every_kind, training=training, source="estimate")
            _rounded(graph)
            dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
            versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
            mode = "training" if training else "inference"
            graph.graph["provenance"] = f"{what}; {mode}, {dtype}, estimated from datasheets; {versions}"
            graph.save(HERE / "graphs" / f"{name}.json")
            print(name, len(graph))
    for name, cluster, about in clusters():
        path = HERE / "clusters" / f"{name}.json"
        cluster.save(path)
        text = json.loads(path.read_text())
        head = {key: text.pop(key) for key in ("baechi", "schema")}
        path.write_text(
            json.dumps({**head, "about": f"{about}; figures of datasheets", **text}, indent=1) + "\n"
        )


if __name__ == "__main__":
    build()
