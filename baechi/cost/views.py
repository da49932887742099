"""Layers whose output is memory of their inputs, and who keeps that memory for backward."""

from collections.abc import Collection, Mapping, Sequence

from baechi.records.layer_costs import LayerCosts


def views_among(layers: Sequence[LayerCosts], made_bytes: Sequence[int]) -> list[bool]:
    """Whether layers output more bytes than they allocated; what the model returns counts as 1 byte."""
    return [made > costs.output_bytes for costs, made in zip(layers, made_bytes, strict=True)]


def keepers_of(
    keepers: Sequence[Collection[str]],
    index: Mapping[str, int],
    makes: Sequence[Sequence[int]],
    reads: Sequence[Sequence[int]],
    is_view: Sequence[bool],
) -> list[set[int]]:
    """By tensor, the readers that may keep it. What keeps a view keeps the memory that it is a view of."""
    found = [{index[name] for name in names} for names in keepers]
    for layer in reversed(range(len(makes))):
        if is_view[layer] and any([found[tensor] for tensor in makes[layer]]):
            for tensor in reads[layer]:
                found[tensor].add(layer)
    return found
