"""Weights by the module that they belong to, and layers by their nearness to a module."""

from collections.abc import Mapping

from baechi.capture.draft import Draft
from baechi.capture.trace import Storage, Trace


def by_module(trace: Trace) -> dict[str, list[Storage]]:
    """The weights in and below each module.

    Args:
        trace: a run of the model.

    Returns:
        Storages by qualified module name; `""` has all.
    """
    below: dict[str, list[Storage]] = {}
    for name, storage in trace.weights.items():
        parts = name.split(".")
        for end in range(len(parts)):
            below.setdefault(".".join(parts[:end]), []).append(storage)
    return below


def nearest_layer(drafts: Mapping[str, Draft], module: str) -> str | None:
    """The layer whose module shares the longest path with another module.

    Args:
        drafts: nodes by name, in code order.
        module: a qualified module name.

    Returns:
        A node's name, the first of several; None if there is no layer.
    """
    layers = [name for name, draft in drafts.items() if draft.kind == "layer"]
    return max(layers, key=lambda name: _shared_parts(drafts[name].module, module), default=None)


def _shared_parts(one: str, other: str) -> int:
    shared = 0
    for a, b in zip(one.split("."), other.split("."), strict=False):
        if a != b:
            break
        shared += 1
    return shared
