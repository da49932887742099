"""`baechi profile`, `place`, `fits`, `clusters`, `links`: from a model to a plan, mostly offline."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baechi import report
from baechi.cli.graph_input import (
    captured,
    check_optimizer,
    check_training,
    devices_of,
    found_for,
    pipeline_for,
    plan_for,
    replicas_for,
    timed,
)
from baechi.cli.options import (
    USUAL,
    ClusterOption,
    EffortOption,
    JsonOption,
    MemoryOption,
    MicrobatchesOption,
    OptimizerOption,
    OutputsOption,
    PlacerOption,
    RecomputeOption,
    ReplicasOption,
    SourceOption,
    TrainingOption,
    effort_of,
    recompute_of,
)
from baechi.cli.targets import model_of, shipped
from baechi.errors import BaechiError
from baechi.records import files
from baechi.records.cluster import Cluster
from baechi.records.datasheet import known_kinds
from baechi.records.device import by_kind
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.report.tables import Table
from baechi.report.words import DrawnTable, Words
from baechi.units import format_bytes, format_seconds

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="path.py:function or package.module:function, returning (model, inputs); or zoo:NAME."
    ),
]
GraphArgument = Annotated[
    str, typer.Argument(help="A target as for `profile`, a graph's file, or a shipped graph: zoo:NAME.")
]


def profile(
    target: TargetArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the graph goes.")],
    cluster: ClusterOption = USUAL,
    training: TrainingOption = None,
    source: SourceOption = "estimate",
    outputs: OutputsOption = None,
) -> None:
    """Capture a model's layer graph, with times and memory on every layer.

    Example: baechi profile train.py:model_and_batch -o graph.json --cluster 4xH100-80GB
    """
    files.check_output(output)
    model, inputs = model_of(target)
    graph = captured(model, inputs, Cluster.parse(cluster), training, source, outputs)
    graph.save(output)
    layers = len(list(graph.placed()))
    Console().print(Words(f"{layers} layers written to {output}"), highlight=False)


def place(
    graph: GraphArgument,
    cluster: ClusterOption = USUAL,
    placer: PlacerOption = "auto",
    optimizer: OptimizerOption = None,
    effort: EffortOption = "1",
    max_memory: MemoryOption = None,
    training: TrainingOption = None,
    source: SourceOption = "estimate",
    outputs: OutputsOption = None,
    microbatches: MicrobatchesOption = None,
    replicas: ReplicasOption = None,
    recompute: RecomputeOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the plan goes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose a device and an order for every layer, and say what that takes.

    With --microbatches it is a pipeline, with --replicas several of it, whose gradients are added up.

    Examples:

      baechi place zoo:inception-v3 --cluster 4xA100-80GB --optimizer adam -o plan.json

      baechi place zoo:transformer --cluster "2x(4xA100-40GB)" --microbatches 8 --replicas auto
    """
    if output is not None:
        files.check_output(output)
    if replicas is not None:
        if placer != "auto" or outputs is not None:
            raise BaechiError("--replicas goes without --placer and --outputs")
        several = replicas_for(
            graph,
            devices_of(cluster, max_memory),
            optimizer,
            (replicas, microbatches),
            effort=effort,
            recompute=recompute,
            training=training,
            source=source,
        )
        if output is not None:
            several.save(output)
        print(several.to_json() if as_json else several)
        return
    if microbatches is not None:
        made: Plan | Pipeline = pipeline_for(
            graph,
            cluster,
            placer,
            optimizer,
            microbatches,
            effort=effort,
            max_memory=max_memory,
            training=training,
            source=source,
            recompute=recompute,
        )
    else:
        made = plan_for(
            graph,
            cluster,
            placer,
            optimizer,
            effort=effort,
            max_memory=max_memory,
            training=training,
            source=source,
            outputs=outputs,
            recompute=recompute,
        )
    if output is not None:
        made.save(output)
    if as_json:
        print(made.to_json())
    else:
        Console().print(report.render(made))


def fits(
    target: GraphArgument,
    cluster: ClusterOption = USUAL,
    optimizer: OptimizerOption = None,
    training: TrainingOption = None,
    effort: EffortOption = "0",
    max_memory: MemoryOption = None,
    recompute: RecomputeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a model with its batch fits, and how large the batch could be. Exit code 1: it does not.

    Example: baechi fits train.py:model_and_batch --cluster 2xRTX-4090 --optimizer adam
    """
    from baechi.verbs.fit import fits as whether_fits
    from baechi.verbs.fit import graph_fits

    found = found_for(target, models_first=True)
    devices, again = devices_of(cluster, max_memory), recompute_of(recompute)
    searched = effort_of(effort)
    if isinstance(found, LayerGraph):
        check_training(found, optimizer, training)
        answer = graph_fits(
            timed(found, devices), devices, optimizer=optimizer, effort=searched, recompute=again
        )
    else:
        model, batch = found
        check_optimizer(optimizer, training=model.training if training is None else training)
        answer = whether_fits(
            model,
            batch,
            devices,
            optimizer=optimizer,
            training=training,
            effort=searched,
            recompute=again,
        )
    if as_json:
        print(json.dumps(asdict(answer), indent=1))
    else:
        Console().print(Words(str(answer)), highlight=False)
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
    found = {key: Cluster.parse(key) for key in ([name] if name else shipped("cluster"))}
    if as_json:
        print(json.dumps({key: cluster.body() for key, cluster in found.items()}, indent=1))
        return
    Console().print(DrawnTable(_clusters_table(found)), Words(f"Datasheets: {', '.join(known_kinds())}"))


def links(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the measured cluster goes.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the links between this machine's accelerators by timed copies, or between processes.

    Under torchrun it measures from process to process, on one host or several; the first one writes.

    Examples:

        baechi links -o cluster.json

        torchrun --nproc-per-node 2 -m baechi links -o cluster.json
    """
    from baechi.backend.processes import size_here
    from baechi.measure import links as measured_links
    from baechi.measure.rank_links import rank_links

    several = size_here() > 1
    speaks = not several or os.environ.get("RANK") == "0"
    if output is not None and speaks:
        files.check_output(output)
    cluster = rank_links() if several else measured_links(Cluster.discover())
    if not speaks:
        return
    if output is not None:
        cluster.save(output)
    if as_json:
        print(cluster.to_json())
        return
    rows = [
        (source, target, format_seconds(link.latency_s), format_bytes(int(link.bytes_per_s)))
        for (source, target), link in cluster.links.items()
    ]
    columns = ("from", "to", "latency", "bytes a second")
    Console().print(DrawnTable(Table("Links", columns, tuple(rows), columns[:2])))


def _clusters_table(found: dict[str, Cluster]) -> Table:
    rows = []
    for key, cluster in found.items():
        sizes = dict.fromkeys([(device.kind, device.memory_bytes) for device in cluster.devices])
        memory = ", ".join([format_bytes(size) for _, size in sizes])
        rate = f"{format_bytes(int(cluster.link.bytes_per_s))}/s"
        rows.append((key, by_kind(cluster.devices), memory, rate, format_seconds(cluster.link.latency_s)))
    columns = ("cluster", "devices", "memory", "link", "latency")
    return Table("Clusters", columns, tuple(rows), columns[:3])
