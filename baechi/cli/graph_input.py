"""From what a person typed to a graph and a plan."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baechi.cli.options import effort_of, max_memory_of, microbatches_of, recompute_of
from baechi.cli.targets import ZOO, graph_of, in_zoo, model_of, shipped
from baechi.errors import BaechiError, printable
from baechi.records import files
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.replicas import Replicas
from baechi.verbs import plans
from baechi.verbs.given import check_outputs

_AUTO_POWERS = 7
"""`--microbatches auto` tries 1, 2, 4, up to 64."""


def captured(
    model: Any, inputs: Any, cluster: Cluster, training: bool | None, source: Any, outputs: Any = None
) -> LayerGraph:
    """The graph of a model.

    Args:
        model: the model.
        inputs: what it is called with.
        cluster: the devices.
        training: for training or inference.
        source: where times come from.
        outputs: where they go.
    """
    from baechi.verbs.profile import profile as profile_model

    outputs = outputs or "inputs"
    return profile_model(model, inputs, cluster=cluster, training=training, source=source, outputs=outputs)


def found_for(text: str, *, models_first: bool = False) -> LayerGraph | tuple[Any, Any]:
    """The graph that a text stands for, or the model with its inputs.

    Args:
        text: what a person typed.
        models_first: whether a model of the zoo is meant, where there is a shipped graph of it, too.

    Raises:
        BaechiError: there is neither.
    """
    is_graph = (
        Path(text).suffix == ".json"
        or text.removeprefix(ZOO) in shipped("graph")
        or files.holds(LayerGraph.record_kind, text)
    )
    return model_of(text) if not is_graph or (models_first and in_zoo(text)) else graph_of(text)


def devices_of(cluster: str, max_memory: str | None) -> Cluster:
    """The devices that `--cluster` and `--max-memory` leave.

    Args:
        cluster: what a person typed.
        max_memory: what a person typed.
    """
    devices, limits = Cluster.parse(cluster), max_memory_of(max_memory)
    return devices if limits is None else devices.with_memory(limits)


def check_optimizer(optimizer: str | None, *, training: bool) -> None:
    """Raise if an optimizer is given where its state cannot count.

    Args:
        optimizer: what a person typed.
        training: whether memory is that of training.

    Raises:
        BaechiError: it is that of inference.
    """
    if optimizer is not None and not training:
        raise BaechiError(
            f"--optimizer {optimizer}: inference has no optimizer; profile with --training, or leave it out"
        )


def check_training(graph: LayerGraph, optimizer: str | None, training: bool | None) -> None:
    """Raise if a graph is not of what is asked for.

    Args:
        graph: a graph that was made before.
        optimizer: what a person typed.
        training: what a person typed.

    Raises:
        BaechiError: it is of inference and training is asked for, or the other way round.
    """
    check_optimizer(optimizer, training=graph.training)
    if training is not None and training != graph.training:
        asked, has = ("--training", "inference") if training else ("--inference", "training")
        raise BaechiError(f"{asked}: this graph has the memory of {has}; profile the model for the other")


def plan_for(
    text: str,
    cluster: str,
    placer: str,
    optimizer: str | None,
    *,
    effort: str = "1",
    max_memory: str | None = None,
    training: bool | None = None,
    source: str = "estimate",
    outputs: str | None = None,
    recompute: str | None = None,
) -> Plan:
    """A plan of a graph or a model, made now. All are as a person typed them.

    Args:
        text: the graph or the model; whether there is such a thing is checked first.
        cluster: the devices.
        placer: who places.
        optimizer: whose state counts.
        effort: how long `auto` searches.
        max_memory: how much of each device.
        training: for training or inference.
        source: where a model's times come from.
        outputs: where they go.
        recompute: the modules that run again in backward.
    """
    check_outputs(outputs)
    found = found_for(text)
    devices, searched, again = devices_of(cluster, max_memory), effort_of(effort), recompute_of(recompute)
    if isinstance(found, LayerGraph):
        check_training(found, optimizer, training)
        found = found if outputs is None else found.noted(outputs=outputs)
        return plans.place(
            timed(found, devices), devices, placer, optimizer=optimizer, effort=searched, recompute=again
        )
    from baechi.records.inputs import Inputs
    from baechi.verbs.judge import judged, runner

    model, inputs = found
    check_optimizer(optimizer, training=model.training if training is None else training)
    graph = captured(model, inputs, devices, training, source, outputs)
    place_within = functools.partial(
        plans.placed, graph, placer=placer, optimizer=optimizer, effort=searched, recompute=again
    )
    return judged(devices, place_within, runner(model, Inputs.each_of(inputs), optimizer))


def pipeline_for(
    text: str,
    cluster: str,
    placer: str,
    optimizer: str | None,
    microbatches: str,
    *,
    effort: str = "1",
    max_memory: str | None = None,
    training: bool | None = None,
    source: Any = "estimate",
    recompute: str | None = None,
) -> Pipeline:
    """A pipeline of a model, made now. All are as a person typed them.

    Args:
        text: the model.
        cluster: the devices.
        placer: who places.
        optimizer: whose state counts.
        microbatches: a number, or `auto`: powers of two up to the batch.
        effort: how long to search.
        max_memory: how much of each device.
        training: for training or inference.
        source: where times come from.
        recompute: the modules that run again in backward.

    Raises:
        BaechiError: it is a graph, which has the costs of one size of batch only.
    """
    from baechi.records.inputs import Inputs
    from baechi.verbs.batches import batch_size
    from baechi.verbs.profile import profile as profile_model

    numbers = microbatches_of(microbatches)
    found = found_for(text, models_first=True)
    if isinstance(found, LayerGraph):
        raise BaechiError(
            f"--microbatches needs the model, to know what a part of its batch costs, and {text} is a graph: "
            "give path.py:function or a model of the zoo"
        )
    model, inputs = found
    check_optimizer(optimizer, training=model.training if training is None else training)
    devices, searched = devices_of(cluster, max_memory), effort_of(effort)
    if numbers is None:
        rows = batch_size(Inputs.of(inputs)) or 1
        numbers = [2**power for power in range(_AUTO_POWERS) if 2**power <= rows]
    graphs = {
        number: profile_model(
            model, inputs, cluster=devices, training=training, source=source, microbatches=number
        )
        for number in {*numbers, *([1] if len(numbers) == 1 else [])}  # one number is compared with none
    }
    return plans.place(
        graphs,
        devices,
        placer,
        optimizer=optimizer,
        effort=searched,
        recompute=recompute_of(recompute),
        microbatches=numbers[0] if len(numbers) == 1 else "auto",
    )


def replicas_for(
    text: str,
    devices: Cluster,
    optimizer: str | None,
    numbers: tuple[str, str | None],
    *,
    effort: str = "1",
    recompute: str | None = None,
    **of_profile: Any,
) -> Replicas:
    """Replicas of a model's pipeline, made now.

    Args:
        text: the model, as a person typed it.
        devices: the cluster.
        optimizer: whose state counts.
        numbers: how many replicas, and microbatches of each, as a person typed them.
        effort: how long to search, as a person typed it.
        recompute: the modules that run again in backward, as a person typed them.
        of_profile: see `profile`.

    Raises:
        BaechiError: it is a graph, or no number of microbatches is given.
    """
    from baechi.verbs.profile import profile as profile_model
    from baechi.verbs.replicas import replicate

    replicas, microbatches = microbatches_of(numbers[0], "--replicas"), microbatches_of(numbers[1] or "auto")
    found = found_for(text, models_first=True)
    if isinstance(found, LayerGraph):
        raise BaechiError(
            f"--replicas takes a model (path.py:function), and {printable(text)} is a graph: "
            "its costs are of one size of batch"
        )
    if microbatches is None:
        raise BaechiError("--replicas needs a number of microbatches: --microbatches 8")
    graph = profile_model(*found, cluster=devices, microbatches=microbatches[0], **of_profile)
    return replicate(
        graph,
        Cluster.parse(devices, ranks=True),
        microbatches=microbatches[0],
        replicas="auto" if replicas is None else replicas[0],
        optimizer=optimizer,
        effort=effort_of(effort),
        recompute=recompute_of(recompute),
    )


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

        estimate(graph, cluster, missing)
    return graph
