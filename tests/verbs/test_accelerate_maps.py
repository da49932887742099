"""Device maps that accelerate makes: all are taken, and the numbers are those of the plain model."""

import logging
from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import compute_module_sizes
from accelerate.utils.modeling import check_device_map
from architectures import HELD_IN, OTHERS, OWN
from same import identical
from torch import Tensor, nn

import baechi
from baechi.torchlib.tensors.pytree import tensors_in

pytestmark = pytest.mark.default_cases(2)

NAMES = (
    "llama gpt2 bert t5 bart clip vit mixtral falcon opt bloom distilbert albert xlnet vit_mae mistral "
    "gpt_neo convnext resnet gemma2"
).split()
ARCHITECTURES = {one.name: one for one in (*HELD_IN, *OTHERS, *OWN) if one.name in NAMES}
PARTS = 0.25, 0.45, 0.7
"""Of a model's bytes, what each of three devices holds; with the first, some weights are left to the disk."""


def ran(model: nn.Module, inputs: dict[str, object]) -> list[Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return list(tensors_in(model(**inputs)))


@pytest.mark.parametrize("name", NAMES)
def test_every_map_is_taken(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Maps that cut blocks, parameters of the model, ties, unused modules; and back in accelerate's form."""
    caplog.set_level(logging.ERROR, "accelerate.utils.modeling")
    model, inputs = ARCHITECTURES[name].build().eval(), ARCHITECTURES[name].inputs()
    expected, cluster = ran(model, inputs), baechi.Cluster.virtual(3)
    graph = baechi.profile(model, inputs, cluster=cluster, training=False, source="estimate")
    size_bytes = compute_module_sizes(model)[""]
    for part in PARTS:
        limits = {device: int(part * size_bytes) for device in range(3)}
        mapping = infer_auto_device_map(model, max_memory=limits)
        plan = baechi.Plan.from_device_map(graph, cluster, mapping)
        found = ran(baechi.assign(model, plan), inputs)
        baechi.restore(model)
        assert len(found) == len(expected) and all(map(identical, found, expected)), part
        mapped = {cluster.names[device] for device in mapping.values() if device != "disk"}
        assert {*plan.devices_used} <= mapped and len(plan.devices_used) >= min(2, len(mapped))
        for_accelerate = plan.to_device_map(index=True)
        check_device_map(model, for_accelerate)  # every weight has a device
        assert {*for_accelerate.values()} == {plan.cluster.names.index(d) for d in plan.devices_used}
        again = baechi.Plan.from_device_map(graph, cluster, for_accelerate)
        assert all(
            again.device_of[n] == plan.device_of[n] for n in plan.device_of if not n.startswith("glue:")
        )


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_accelerate_and_transformers_take_our_maps(name: str, tmp_path: Path) -> None:
    """They dispatch by it and load by it. (Its numbers are GPUs, so here the CPU stands for each of them.)"""
    model, inputs = ARCHITECTURES[name].build().eval(), ARCHITECTURES[name].inputs()
    expected = ran(model, inputs)
    graph = baechi.profile(model, inputs, cluster="2xL4", training=False)
    mapping = baechi.place(graph, "2xL4", "round-robin").to_device_map(index=True)
    assert {*mapping.values()} == {0, 1}
    on_cpu = dict.fromkeys(mapping, "cpu")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, device_map=on_cpu).eval()
    dispatched = dispatch_model(model, on_cpu, main_device="cpu", force_hooks=True)
    assert all(map(identical, ran(loaded, inputs), expected))
    assert all(map(identical, ran(dispatched, inputs), expected))
