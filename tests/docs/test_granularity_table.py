"""The node counts on the page about capture are those of the models."""

import re

import pytest
from architectures import HELD_IN
from docs.pages import page

from baechi.capture import capture
from baechi.records import Inputs

pytestmark = pytest.mark.full

NAMES = {"GPT-2": "gpt2"}


def test_how_many_nodes_models_have() -> None:
    """Layers and functional ops of each model of transformers, as the table says."""
    (row,) = re.findall(r"models of transformers with two blocks: (.*) \|", page("docs/design/capture.md"))
    said = {NAMES.get(name, name.lower()): int(number) for name, number in re.findall(r"(\S+) (\d+)", row)}
    models = {architecture.name: architecture for architecture in HELD_IN}
    assert said.keys() == models.keys()
    for name, architecture in models.items():
        graph = capture(architecture.build(), Inputs.of(architecture.inputs()), training=True)
        assert len(list(graph.placed())) == said[name], name
