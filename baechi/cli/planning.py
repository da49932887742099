"""`baechi profile`, `place`, `fits`, `clusters`, `links`: from a model to a plan, mostly offline."""

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from baechi import report
from baechi.cli.targets import ZOO, cluster_of, graph_of, model_of, shipped
from baechi.errors import BaechiError
from baechi.records.cluster import Cluster
from baechi.records.datasheet import known_kinds
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.units import format_bytes, format_seconds
from baechi.verbs import planning

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="path.py:function or package.module:function, returning (model, inputs); or zoo:NAME."
    ),
]
ClusterOption = Annotated[
    str, typer.Option(help="A file, a shipped name (see `baechi clusters`), or devices: 4xA100-80GB.")
]
PlacerOption = Annotated[str, typer.Option(help="auto, single, m-topo, m-etf, m-sct, chain, ...")]
OptimizerOption = Annotated[str | None, typer.Option(help="Whose state counts in training, such as adam.")]
TrainingOption = Annotated[
    bool | None, typer.Option("--training/--inference", help="As the model stands unless given.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

USUAL = "2xA100-80GB"


def profile(
    target: TargetArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the graph goes.")],
    cluster: ClusterOption = USUAL,
    training: TrainingOption = None,
    source: Annotated[str, typer.Option(help="auto, hooks, layers or estimate.")] = "estimate",
) -> None:
    """Capture a model's layer graph, with times and memory on every layer.

    Example: baechi profile train.py:model_and_batch -o graph.json --cluster 4xH100-80GB
    """
    graph = _profiled(target, cluster_of(cluster), training, source)
    graph.save(output)
    layers = len(list(graph.placed()))
    Console().print(f"{layers} layers written to {output}", highlight=False)


def place(
    graph: Annotated[
        str, typer.Argument(help="A graph's file, a shipped graph, or a target as for `profile`.")
    ],
    cluster: ClusterOption = USUAL,
    placer: PlacerOption = "auto",
    optimizer: OptimizerOption = None,
    effort: Annotated[str, typer.Option(help="Of auto: 0, 1, 2, ... or max.")] = "1",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the plan goes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose a device and an order for every layer, and say what that takes.

    Example: baechi place zoo:inception-v3 --cluster 4xA100-80GB --optimizer adam -o plan.json
    """
    devices = cluster_of(cluster)
    plan = plan_for(graph, devices, placer, optimizer, _effort(effort))
    if output is not None:
        plan.save(output)
    if as_json:
        print(plan.to_json())
    else:
        Console().print(report.render(plan))


def fits(
    target: TargetArgument,
    cluster: ClusterOption = USUAL,
    optimizer: OptimizerOption = None,
    training: TrainingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a model with its batch fits, and how large the batch could be. Exit code 1: it does not.

    Example: baechi fits train.py:model_and_batch --cluster 2xRTX-4090 --optimizer adam
    """
    from baechi.verbs.fitting import fits as whether_fits

    model, batch = model_of(target)
    answer = whether_fits(model, batch, cluster_of(cluster), optimizer=optimizer, training=training)
    if as_json:
        print(json.dumps(asdict(answer), indent=1))
    else:
        Console().print(str(answer), highlight=False)
    if not answer:
        raise typer.Exit(1)


def clusters(
    name: Annotated[
        str | None, typer.Argument(help="A cluster, as for --cluster; all shipped ones unless given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show clusters: devices, memory, links. Devices with a datasheet can be combined: 4xA100-80GB.

    Example: baechi clusters 2xH100-80GB,1xRTX-4090
    """
    found = {key: cluster_of(key) for key in ([name] if name else shipped("cluster"))}
    if as_json:
        print(json.dumps({key: cluster.body() for key, cluster in found.items()}, indent=1))
        return
    console = Console()
    console.print(_clusters_table(found))
    console.print(f"Datasheets: {', '.join(known_kinds())}", highlight=False)


def links(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the measured cluster goes.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the links between this machine's accelerators by timed copies.

    Example: baechi links -o cluster.json
    """
    from baechi.measure import links as measured_links

    cluster = measured_links(Cluster.discover())
    if output is not None:
        cluster.save(output)
    if as_json:
        print(cluster.to_json())
        return
    table = Table("from", "to", "latency", "bytes a second", box=box.SIMPLE_HEAD)
    for (source, target), link in cluster.links.items():
        table.add_row(source, target, format_seconds(link.latency_s), format_bytes(int(link.bytes_per_s)))
    Console().print(table)


def _profiled(target: str, cluster: Cluster, training: bool | None, source: Any) -> LayerGraph:
    return _captured(*model_of(target), cluster, training, source)


def _captured(model: Any, inputs: Any, cluster: Cluster, training: bool | None, source: Any) -> LayerGraph:
    from baechi.verbs.profiling import profile as profile_model

    return profile_model(model, inputs, cluster=cluster, training=training, source=source)


def graph_for(text: str, cluster: Cluster) -> LayerGraph:
    """A graph from a file, from those that are shipped, or of a model, with times for a cluster.

    Args:
        text: what a person typed.
        cluster: the devices.
    """
    return timed(graph_of(text), cluster) if _is_graph(text) else _profiled(text, cluster, None, "estimate")


def _is_graph(text: str) -> bool:
    return Path(text).suffix == ".json" or text.removeprefix(ZOO) in shipped("graph")


def plan_for(text: str, cluster: Cluster, placer: str, optimizer: str | None, effort: Any = 1) -> Plan:
    """A plan of a graph or a model, made now.

    Args:
        text: what a person typed for it.
        cluster: the devices.
        placer: who places.
        optimizer: whose state counts.
        effort: how long `auto` searches.
    """
    if _is_graph(text):
        return planning.place(graph_for(text, cluster), cluster, placer, optimizer=optimizer, effort=effort)
    from baechi.records.inputs import Inputs
    from baechi.verbs.judging import judged, runner

    model, inputs = model_of(text)
    graph = _captured(model, inputs, cluster, None, "estimate")
    place_within = functools.partial(planning.place, graph, placer=placer, optimizer=optimizer, effort=effort)
    return judged(cluster, place_within, runner(model, Inputs.each_of(inputs), optimizer))


def timed(graph: LayerGraph, cluster: Cluster) -> LayerGraph:
    """The graph, with times estimated for kinds of device that it has none for.

    Args:
        graph: a graph; one without counts of work is left as it is.
        cluster: the devices.
    """
    times = [costs.forward_s for _, costs in graph.placed_costs()]
    known = set.intersection(*[set(kinds) for kinds in times if isinstance(kinds, Mapping)] or [set()])
    missing = [device for device in cluster.devices if device.kind not in known]
    if missing and any(isinstance(kinds, Mapping) for kinds in times) and graph.total("moved_bytes"):
        from baechi.measure import estimate

        estimate(graph, missing, cluster.launch_s)
    return graph


def _effort(text: str) -> Any:
    if text == "max":
        return text
    if not text.isdigit():
        raise BaechiError(f"--effort {text}: it is a whole number of at least 0, or max")
    return int(text)


def _clusters_table(found: dict[str, Cluster]) -> Table:
    table = Table("cluster", "devices", "memory", "link", box=box.SIMPLE_HEAD)
    for name, cluster in found.items():
        kinds: dict[tuple[str, int], int] = {}
        for device in cluster.devices:
            kinds[device.kind, device.memory_bytes] = kinds.get((device.kind, device.memory_bytes), 0) + 1
        devices = ", ".join(f"{count} x {kind}" for (kind, _), count in kinds.items())
        memory = ", ".join(format_bytes(size) for _, size in kinds)
        rate = f"{format_bytes(int(cluster.link.bytes_per_s))}/s, {format_seconds(cluster.link.latency_s)}"
        table.add_row(name, devices, memory, rate)
    return table
