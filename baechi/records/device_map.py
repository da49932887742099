"""Plans from and to a device map: names of modules and weights, and where they lie, as accelerate writes it.

A layer lies where most of its weights are mapped to. A group of nodes that must share a device lies where
most bytes of its layers are mapped to. What a map says nothing of goes with what it works on.
"""

import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from baechi.errors import PlanError, printable
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph

logger = logging.getLogger(__name__)

ROOT = "(root)"  # the module name of a model that is one layer

DeviceMap = Mapping[str, Any]
"""By name of a module or weight: a device's name, its index in the cluster, or a `torch.device`."""

_OFFLOADED = ("cpu", "disk")


def devices_from_map(graph: LayerGraph, cluster: Cluster, mapping: DeviceMap) -> dict[str, str]:
    """The device of every node, by a device map."""
    faults: list[str] = []
    devices = _devices_of(cluster, mapping, faults)
    votes = {name: _votes(graph, name, devices) for name in graph.placed()}
    wanted = {name: max(by, key=lambda device: by[device]) for name, by in votes.items() if by}
    faults += [
        f"no name of the map covers {n}" for n in graph.placed() if n not in wanted and _decides(graph, n)
    ]
    if faults:
        raise PlanError("the device map does not fit:", tuple(faults))
    device_of: dict[str, str] = {}
    loose: list[list[str]] = []
    for members in graph.groups().values():
        chosen = _chosen(graph, {name: wanted[name] for name in members if name in wanted})
        if chosen is None:
            loose.append(members)
        else:
            device_of.update(dict.fromkeys(members, chosen))
    _place_near(graph, loose, device_of, next(iter(devices.values()), cluster.names[0]))
    _tell_unused(graph, mapping)
    _tell_overridden(graph, device_of, wanted, votes)
    return device_of


def _place_near(graph: LayerGraph, loose: list[list[str]], device_of: dict[str, str], otherwise: str) -> None:
    """Put groups that a map says nothing of with what they work on, and that with what it works on."""
    while loose:
        left = []
        for members in loose:
            near = [
                n for m in members for n in (*graph.predecessors(m), *graph.successors(m)) if n in device_of
            ]
            if near:
                device_of.update(dict.fromkeys(members, device_of[near[0]]))
            else:
                left.append(members)
        if len(left) == len(loose):
            device_of.update({name: otherwise for members in left for name in members})
            return
        loose = left


def map_from_devices(graph: LayerGraph, device_of: Mapping[str, str]) -> dict[str, str]:
    """The shortest device map that says where each layer, and each weight of no layer, lies."""
    where: dict[str, str] = {}
    for name, costs in graph.placed_costs():
        module = graph.module_of(name)
        if _is_layer(graph, name) and module != ROOT:
            where.setdefault(module, device_of[name])
        for weight in costs.weights or ():  # of a functional op, of the root, or another name of a tied one
            if where.keys().isdisjoint(_prefixes(weight)):
                where[weight] = device_of[name]
    devices = {*where.values()} or {device_of[name] for name in graph.placed() if _is_layer(graph, name)}
    if len(devices) <= 1:
        return dict.fromkeys([""], *devices) if devices else {}
    spread: dict[str, set[str]] = {}
    for module, device in where.items():
        for prefix in _prefixes(module):
            spread.setdefault(prefix, set()).add(device)
    mapping: dict[str, str] = {}
    for module, device in where.items():
        whole = next(prefix for prefix in _prefixes(module) if len(spread[prefix]) == 1 or prefix == module)
        mapping[whole] = device
    return mapping


def index_of(device: str) -> int | str:
    """The number by which accelerate knows a device; a device without a number keeps its name."""
    number = device.partition("/")[0].rpartition(":")[2]
    return int(number) if number.isdigit() else device


def check_names(mapping: DeviceMap, known: Iterable[str]) -> None:
    """Raise if a device map has names that a model does not have."""
    names = set(known) | {""}
    unknown = [name for name in mapping if name not in names]
    if unknown:
        raise PlanError(
            "the device map has names that are no module and no weight of the model:",
            tuple([f"{name!r}{_resembling(str(name), names)}" for name in unknown]),
        )


def _resembling(name: str, known: set[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f": is it {close[0]!r}?" if close else ""


def _devices_of(cluster: Cluster, mapping: DeviceMap, faults: list[str]) -> dict[str, str]:
    """The device that each name is mapped to; for weights left to the host, the one that uses them."""
    devices, offloaded = {}, []
    for name, device in mapping.items():
        found = str(device)
        if isinstance(device, int) and not isinstance(device, bool) and 0 <= device < len(cluster):
            found = cluster.names[device]
        if found in _OFFLOADED and found not in cluster.names:
            offloaded.append(name)
        elif found not in cluster.names:
            faults.append(f"{name!r} is mapped to {device!r}: the devices are {', '.join(cluster.names)}")
        devices[name] = found
    main = next((device for name, device in devices.items() if name not in offloaded), cluster.names[0])
    if offloaded:
        logger.warning(
            "the device map leaves %s to the host, from where accelerate copies weights at each call; here "
            "they lie on %s, which uses them (baechi.Cluster.discover(cpu='16GiB') makes the CPU a device)",
            _listed(offloaded),
            main,
        )
    return {**devices, **dict.fromkeys(offloaded, main)}


def _chosen(graph: LayerGraph, wanted: Mapping[str, str]) -> str | None:
    """The device of a group, by what the map says of its members; None if it says nothing."""
    layers = {n: d for n, d in wanted.items() if _is_layer(graph, n) and not graph.costs(n).unread}
    holding = {n: d for n, d in layers.items() if _has_weights(graph, n)}
    deciding = holding or {n: d for n, d in wanted.items() if _has_weights(graph, n)} or layers or wanted
    if not deciding:
        return None
    size_bytes = dict.fromkeys(deciding.values(), 0.0)
    for name, device in deciding.items():
        costs = graph.costs(name)
        size_bytes[device] += costs.param_bytes + costs.buffer_bytes
    return max(size_bytes, key=lambda device: size_bytes[device])  # the first of equals


def _votes(graph: LayerGraph, name: str, devices: Mapping[str, str]) -> dict[str, int]:
    """By device, how many of a node's weights a map puts there; without weights, where it puts its module."""
    module = graph.module_of(name)
    module = "" if module == ROOT else module
    votes: dict[str, int] = {}
    for covered in _own_weights(graph, name, module) or [module]:
        device = _longest(covered, devices)
        if device is not None:
            votes[device] = votes.get(device, 0) + 1
    return votes


def _own_weights(graph: LayerGraph, name: str, module: str) -> list[str]:
    """Names of a node's weights. Those in its own module count, if a tied one has other names too."""
    weights = list(graph.costs(name).weights or ())
    return [weight for weight in weights if weight.startswith(f"{module}." if module else "")] or weights


def _longest(name: str, devices: Mapping[str, str]) -> str | None:
    found = next((prefix for prefix in reversed(_prefixes(name)) if prefix in devices), "")
    return devices.get(found)


def _tell_unused(graph: LayerGraph, mapping: DeviceMap) -> None:
    """Say which names of a map concern nothing in the graph: they are misspelt.

    (Modules without weights, in others that are in the graph, may be there without being called.)
    """
    known = {""}
    for name, costs in graph.placed_costs():
        known.update(_prefixes(graph.module_of(name)))
        for weight in costs.weights or ():
            known.update(_prefixes(weight))
    unused = [name for name in mapping if name not in known and name.rpartition(".")[0] not in known - {""}]
    if unused:
        logger.warning("the device map's %s: nothing so called runs, or has weights", _listed(unused))


def _tell_overridden(
    graph: LayerGraph,
    device_of: Mapping[str, str],
    wanted: Mapping[str, str],
    votes: Mapping[str, Mapping[str, int]],
) -> None:
    """Say where weights lie elsewhere than a map says: its cut goes through a layer, or through a tie."""
    moved = [f"{name} is one layer, on {device_of[name]}" for name in votes if len(votes[name]) > 1]
    for members in graph.groups().values():
        for name in members:
            if _is_layer(graph, name) and not graph.costs(name).unread and name in wanted:
                there = [n for n in members if n != name and wanted.get(n) == device_of[name]]
                if wanted[name] != device_of[name]:
                    moved.append(f"{name} is on {device_of[name]}, since it shares memory with {there[0]}")
    if moved:
        logger.warning("not quite as the device map says: %s", _listed(moved))


def _prefixes(module: str) -> list[str]:
    """`a.b.c` > `a`, `a.b`, `a.b.c`."""
    parts = module.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _has_weights(graph: LayerGraph, name: str) -> bool:
    costs = graph.costs(name)
    return costs.param_bytes + costs.buffer_bytes > 0


def _is_layer(graph: LayerGraph, name: str) -> bool:
    return graph.costs(name).kind == "layer"


def _decides(graph: LayerGraph, name: str) -> bool:
    """Whether a map has to cover a node: it has parameters that something reads."""
    costs = graph.costs(name)
    return costs.param_bytes > 0 and not costs.unread


def _listed(names: list[str]) -> str:
    shown = [printable(name) for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
