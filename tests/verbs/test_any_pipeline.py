"""Any graph on any cluster is placed for microbatches within memory, or refused."""

from hypothesis import given, settings
from hypothesis import strategies as st
from place.strategies import clusters, layer_graphs

import baechi
from baechi import Cluster, LayerGraph
from baechi.errors import PlacementError
from baechi.order.pipeline import TEXTBOOK


@settings(max_examples=40, deadline=None)
@given(layer_graphs(), clusters(), st.integers(1, 5), st.sampled_from([0, 1]))
def test_any_graph(graph: LayerGraph, cluster: Cluster, microbatches: int, effort: int) -> None:
    """What comes back keeps memory, can be shown, and is not behind the literature's orders that fit."""
    try:
        made = baechi.place(graph, cluster, microbatches=microbatches, effort=effort)
    except PlacementError:
        return
    limits = {device.name: device.memory_bytes for device in cluster.devices}
    assert all(peak <= limits[name] for name, peak in made.timeline.peak_bytes.items())
    assert str(made) and repr(made)
    for name in TEXTBOOK if microbatches > 1 else ():
        other = baechi.pipeline(made.plan, microbatches, name).timeline
        fits = all(peak <= limits[device] for device, peak in other.peak_bytes.items())
        assert made.timeline.makespan_s <= other.makespan_s * (1 + 1e-9) or not fits
