"""The bytes of a captured layer against what it really takes, on the emulated cluster."""

import pytest
from architectures import HELD_IN, Architecture
from architectures.of_zoo import ZOO
from capture.ledger import Ledger, ledger_of
from torch import nn

from baechi.capture import capture
from baechi.records import Inputs, LayerGraph

pytestmark = pytest.mark.default_cases(2)

ROUNDING_BYTES = 64
"""Scalars and indices that fake kernels do without, or make besides."""

AT_MOST = 1.05

AFTER_A_VIEW = {"bert.pooler.dense", "vision_model.post_layernorm", "classifier"}
"""A view between layers is no node. Its backward makes a tensor as large as what it views, which is
counted with the next layer: here that is above what the layer itself needs."""


def second_gradient_bytes(model: nn.Module, graph: LayerGraph, layer: str) -> int:
    """Of weights that later layers read as well, the gradient that is there when this one runs."""
    module = graph.nodes[layer]["module"]
    named = list(model.named_parameters(remove_duplicate=False))
    own = {id(weight): weight.nbytes for name, weight in named if name.startswith(f"{module}.")}
    elsewhere = {id(weight) for name, weight in named if not name.startswith(f"{module}.")}
    return sum(nbytes for weight, nbytes in own.items() if weight in elsewhere)


def faults(model: nn.Module, graph: LayerGraph, ledger: Ledger) -> list[str]:
    """Layers of which too little is said, or too much."""
    found = []
    for layer in ledger.windows:
        kept = graph.amount(layer, "saved_bytes") + graph.amount(layer, "held_bytes")
        needed, truth = graph.amount(layer, "temp_bytes"), ledger.temp_bytes(layer)
        loose = second_gradient_bytes(model, graph, layer) if graph.training else 0
        if not ledger.kept_bytes(layer) <= kept <= AT_MOST * ledger.kept_bytes(layer) + ROUNDING_BYTES:
            found.append(f"{layer} keeps {ledger.kept_bytes(layer)}, {kept:.0f} are said")
        above = needed > AT_MOST * (truth + loose) + ROUNDING_BYTES
        if needed < truth or (above and layer not in AFTER_A_VIEW):
            found.append(f"{layer} needs {truth}, {needed:.0f} are said")
    return found


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", [*ZOO, *HELD_IN], ids=lambda a: a.name)
def test_never_below(architecture: Architecture, training: bool) -> None:
    """What a layer leaves and what it needs is never below the truth, and at most 5 % above."""
    inputs = Inputs.of(architecture.inputs())
    model = architecture.build().train(training)
    graph = capture(model, inputs, training=training)
    ledger = ledger_of(model, graph, inputs)
    assert len(ledger.windows) > 5 and any(ledger.kept_bytes(layer) for layer in ledger.windows)
    assert faults(model, graph, ledger) == []
