"""Note on a layer graph which of its layers can be split, so that splitting needs no model."""

from torch import nn

from baechi.records.graph import LayerGraph
from baechi.split.table import refusal_of, rule_of


def note_splits(graph: LayerGraph, model: nn.Module, rows: int) -> None:
    """Note the shapes of weights of layers that a rule splits, their ties, and why one cannot be split."""
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    modules = dict(model.named_modules(remove_duplicate=False))
    for node, costs in graph.placed_costs():
        layer = modules.get(graph.module_of(node))
        rule = None if layer is None or costs.kind != "layer" or costs.unread else rule_of(type(layer))
        if layer is None or rule is None:
            continue
        own = dict(layer.named_parameters())
        prefix = f"{graph.module_of(node)}."
        tied = {
            name: [other for other in names[id(weight)] if other != f"{prefix}{name}"]
            for name, weight in own.items()
        }
        graph.nodes[node]["splits"] = {
            "shapes": {name: list(weight.shape) for name, weight in own.items()},
            "tied": {name: others for name, others in tied.items() if others},
            "refused": refusal_of(layer, rule),
        }
        lengths = {dim: getattr(layer, how.length) for dim, how in rule.dims.items() if how.length}
        if lengths:
            graph.nodes[node]["splits"]["lengths"] = lengths
        if any([not how.cuts for how in rule.dims.values()]):
            graph.nodes[node]["splits"]["rows"] = rows
            sizes = {name: weight.numel() * weight.element_size() for name, weight in own.items()}
            graph.nodes[node]["splits"]["bytes"] = sizes
