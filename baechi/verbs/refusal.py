"""What a user reads where nothing fits: the model, its batch, the devices, and one shortage."""

from collections import Counter

from torch import nn

from baechi.errors import PlacementError, note
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.units import format_bytes
from baechi.verbs.batches import batch_size


def refused(
    error: PlacementError, model: nn.Module, inputs: Inputs, cluster: Cluster, graph: LayerGraph
) -> PlacementError:
    """The error with what was to be placed, without the frames of the search."""
    optimizer, number = graph.graph.get("optimizer"), graph.graph.get("microbatches", 1)
    mode = f"training{f' with {optimizer}' if optimizer else ''}" if graph.training else "inference"
    parts = f" in {number} microbatches" if number > 1 else ""
    rows = batch_size(inputs)
    batch = "" if rows is None else f" with a batch of {rows}"
    made = PlacementError(
        f"{type(model).__name__}{batch}{parts} ({mode}) does not fit {in_words(cluster)}:\n{error}",
        layer=error.layer,
        short_bytes=error.short_bytes,
    )
    for line in getattr(error, "__notes__", ()):
        note(made, line)
    return made


def in_words(cluster: Cluster) -> str:
    """The devices by kind, such as `2 x A100-40GB of 39.00 GiB`."""
    kinds = Counter([(device.kind, device.memory_bytes) for device in cluster.devices])
    return ", ".join([f"{n} x {kind} of {format_bytes(size)}" for (kind, size), n in kinds.items()])
