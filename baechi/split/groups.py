"""Which nodes share a device when layers of their group are split.

A group is held together by ties (the shards of tied layers go on sharing a device, one by one), by what
follows an output (that goes with the join), and by layers that did not run (nothing is known of what they
hand each other, so they stay together, with the join).
"""

from collections.abc import Mapping

import networkx as nx

from baechi.records.graph import LayerGraph
from baechi.split.costs import splits_of


def regrouped(
    before: LayerGraph,
    made: LayerGraph,
    shards: Mapping[str, list[str]],
    heads: Mapping[str, str],
    broadcasts: Mapping[str, str],
) -> None:
    """Set the groups of shards, joins, and of what was in a group with their layers."""
    groups: dict[str, list[str]] = {}
    for name in before.placed():
        group = before.nodes[name].get("colocate")
        if group is not None:
            groups.setdefault(group, []).append(name)
    for group, members in groups.items():
        if any(member in shards for member in members):
            _shards_together(made, group, [shards[member] for member in members if member in shards])
            _others_together(made, group, members, heads)
            _weights_together(before, made, group, members, broadcasts)
    for name, own in shards.items():  # a layer without a group of its own
        for number, shard in enumerate(own):
            made.nodes[shard].setdefault("colocate", f"{name}[{number}]")


def _shards_together(made: LayerGraph, group: str, split: list[list[str]]) -> None:
    for own in split:
        for number, shard in enumerate(own):
            made.nodes[shard]["colocate"] = f"{group}[{number}]"


def _others_together(
    made: LayerGraph,
    group: str,
    members: list[str],
    heads: Mapping[str, str],
) -> None:
    """What follows an output, one op after the other, goes with the join; and what did not run."""
    rest = [heads.get(member, member) for member in members]
    beside: nx.Graph[str] = nx.Graph(made.subgraph(rest).to_undirected(as_view=True).edges())
    beside.add_nodes_from(rest)
    join = next(heads[member] for member in members if member in heads)
    beside.add_edges_from([(join, member) for member in rest if made.nodes[member].get("unread")])
    for component in nx.connected_components(beside):
        first = next(member for member in rest if member in component)
        for member in component:
            made.nodes[member]["colocate"] = f"{group}/{first}"


def _weights_together(
    before: LayerGraph, made: LayerGraph, group: str, members: list[str], broadcasts: Mapping[str, str]
) -> None:
    """What sends a weight to shards of rows lies with layers that are tied to it, and are whole."""
    own = [member for member in members if member in broadcasts]
    names = {
        name for member in own for tied in splits_of(before.costs(member))["tied"].values() for name in tied
    }
    modules = {name.rpartition(".")[0] for name in names}
    whole = [member for member in members if member in made and before.module_of(member) in modules]
    home = made.nodes[whole[0]]["colocate"] if whole else f"{group}/weights"
    for member in whole:
        joined = made.nodes[member]["colocate"]
        for _, data in made.nodes(data=True):
            if data.get("colocate") == joined:
                data["colocate"] = home
    for member in own:
        made.nodes[broadcasts[member]]["colocate"] = home
