"""Plans from and to a device map: module names and where they lie, as accelerate's users write it."""

from collections.abc import Mapping

from baechi.errors import PlanError
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph

ROOT = "(root)"  # the module name of a model that is one layer


def devices_from_map(graph: LayerGraph, cluster: Cluster, mapping: Mapping[str, int | str]) -> dict[str, str]:
    """The device of every node, by a device map.

    Args:
        graph: the layer graph.
        cluster: the devices.
        mapping: device (name or index) by module name; see `Plan.from_device_map`.

    Returns:
        Device name by node.

    Raises:
        PlanError: every layer not covered, unknown device and torn group.
    """
    faults: list[str] = []
    devices = {prefix: _device_name(cluster, prefix, device, faults) for prefix, device in mapping.items()}
    device_of: dict[str, str] = {}
    loose: list[list[str]] = []
    for members in graph.groups().values():
        wanted = {name: _covering(graph, name, devices) for name in members}
        uncovered = [n for n, device in wanted.items() if device is None and _decides(graph, n)]
        faults += [f"no name of the map covers {name}" for name in uncovered]
        covered = {n: d for n, d in wanted.items() if d is not None}
        holding = {n: d for n, d in covered.items() if _is_layer(graph, n) and _has_weights(graph, n)}
        deciding = holding or covered  # glue, and layers without weights, go with the others
        if not deciding:
            loose.append(members)
            continue
        first = next(iter(deciding))
        torn = [f"{n} on {d}" for n, d in holding.items() if d != deciding[first]]
        if torn:
            faults.append(f"these must share a device: {first} on {deciding[first]}, {', '.join(torn)}")
        device_of.update(dict.fromkeys(members, deciding[first]))
    if faults:
        raise PlanError("the device map does not fit:", tuple(faults))
    for members in loose:  # glue of the root module that no name covers: with what it works on
        near = [n for m in members for n in (*graph.predecessors(m), *graph.successors(m)) if n in device_of]
        device_of.update(dict.fromkeys(members, device_of[near[0]] if near else cluster.names[0]))
    return device_of


def map_from_devices(graph: LayerGraph, device_of: Mapping[str, str]) -> dict[str, str]:
    """The shortest device map that says where each layer lies.

    Args:
        graph: the layer graph.
        device_of: device name by node.

    Returns:
        Device name by module name, in code order; `{"": device}` if all lie on one.
    """
    where: dict[str, str] = {}
    for name in graph.placed():
        if _is_layer(graph, name):
            where.setdefault(graph.module_of(name), device_of[name])
    devices = set(where.values())
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


def _prefixes(module: str) -> list[str]:
    """`a.b.c` > `a`, `a.b`, `a.b.c`."""
    parts = module.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _module_of(graph: LayerGraph, name: str) -> str:
    module = graph.module_of(name)
    return "" if module == ROOT else module


def _covering(graph: LayerGraph, name: str, devices: Mapping[str, str]) -> str | None:
    module = _module_of(graph, name)
    for prefix in reversed(_prefixes(module)):
        if prefix in devices:
            return devices[prefix]
    return devices.get("")


def _has_weights(graph: LayerGraph, name: str) -> bool:
    costs = graph.costs(name)
    return costs.param_bytes + costs.buffer_bytes > 0


def _is_layer(graph: LayerGraph, name: str) -> bool:
    return graph.costs(name).kind == "layer"


def _decides(graph: LayerGraph, name: str) -> bool:
    return _is_layer(graph, name) or _has_weights(graph, name)


def _device_name(cluster: Cluster, prefix: str, device: int | str, faults: list[str]) -> str:
    known = ", ".join(cluster.names)
    if isinstance(device, int) and not isinstance(device, bool) and 0 <= device < len(cluster):
        return cluster.names[device]
    if device not in cluster.names:
        faults.append(f"{prefix!r} is mapped to {device!r}: the devices are {known}")
    return str(device)
