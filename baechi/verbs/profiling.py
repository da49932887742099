"""From a model to its layer graph, with times and memory on every layer."""

import logging
from collections.abc import Iterable
from typing import Any, Literal

from torch import nn

from baechi.backend import is_here, unwatched
from baechi.backend.real.discover import has_accelerator
from baechi.capture import capture_each, union
from baechi.cost.memory import step_bytes
from baechi.measure import estimate, estimate_issue, measure, measure_layers
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.run import refuse_distributed
from baechi.torchlib.autocast import autocast_everywhere
from baechi.torchlib.host_memory import free_host_bytes
from baechi.torchlib.modules.arguments import Arguments
from baechi.torchlib.modules.on_meta import is_on_meta

logger = logging.getLogger(__name__)

Names = Iterable[str | type[nn.Module]] | type[nn.Module]
Source = Literal["auto", "hooks", "layers", "estimate"]

_SOURCES = ("auto", "hooks", "layers", "estimate")


def profile(
    model: nn.Module,
    example_inputs: Any,
    *,
    cluster: Cluster | None = None,
    training: bool | None = None,
    accumulate: bool = False,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    rounds: int = 20,
    source: Source = "auto",
    verbose: bool | None = None,
) -> LayerGraph:
    """Capture the layer graph of a model, with times and memory on every layer.

    Under `torch.autocast` costs are those of the dtype that the kernels then compute in.

    Args:
        model: the model; left exactly as found. It may be on the `meta` device for an estimate.
        example_inputs: as `distribute` takes them.
        cluster: whose devices the times are for; by default as in `distribute`.
        training: costs of training or of inference; `model.training` unless given.
        accumulate: whether gradients of weights are there all the time, since they are added up over
            several steps, or dropped only right before backward. Else each step begins without them
            (`zero_grad()` after the optimizer's step), and they come with backward.
        no_split_module_classes: class names, classes or qualified names kept whole.
        split_module_classes: the same of modules that are divided into those inside of them.
        rounds: how often the model runs when it is measured.
        source: `"hooks"` runs the model on the CPU and times each layer in place; `"layers"` runs
            each distinct layer by itself, with made-up values, so that no model is too large: on each
            kind of device if the cluster's are this machine's, else on the CPU; `"estimate"` takes the
            devices' datasheets; `"auto"` measures if all devices are this machine's: layer by layer on
            accelerators, and on the CPU with hooks where the model fits its memory.
        verbose: whether to show progress on the standard error; on a terminal only unless given.

    Returns:
        The layer graph.

    Raises:
        CaptureError: the model does not run with the example inputs.
        ValueError: an unknown source, a device without rates, or an unknown class to keep whole.
        BaechiError: the model is distributed already.
    """
    if source not in _SOURCES:
        raise ValueError(f"source {source!r} is unknown: known are {', '.join(_SOURCES)}")
    refuse_distributed(model)
    cluster = default_cluster() if cluster is None else cluster
    examples = Inputs.each_of(example_inputs)
    training = model.training if training is None else training
    with unwatched(), autocast_everywhere(), verbosity(verbose), progress("capturing"):
        arguments: list[dict[str, Arguments]] = [{} for _ in examples]
        graphs = capture_each(
            model,
            examples,
            training=training,
            no_split_module_classes=no_split_module_classes,
            split_module_classes=split_module_classes,
            arguments=arguments if source in ("auto", "layers") and _may_measure(cluster, source) else None,
        )
        if source == "auto":
            source = _best_source(model, graphs, cluster)
        for graph, inputs, called_with in zip(graphs, examples, arguments, strict=True):
            if source == "hooks":
                with progress("measuring"):
                    measure(model, inputs, graph, rounds=rounds)
            elif source == "layers":
                here = cluster if _is_real(cluster) else None
                measure_layers(model, graph, called_with, rounds=rounds, cluster=here)
        graph = union(graphs)
        if source != "estimate":
            graph.graph["measured"] = True
        if source == "layers" and _is_real(cluster):
            estimate_issue(graph, cluster.launch_s)
        if source == "estimate":
            estimate(graph, cluster.devices, cluster.launch_s)
    if accumulate:
        graph.graph["accumulate"] = True
    return graph


def _best_source(model: nn.Module, graphs: list[LayerGraph], cluster: Cluster) -> Source:
    if _is_real(cluster):
        return "layers"
    if not _is_cpu(cluster):
        return "estimate"
    return "layers" if is_on_meta(model) or max(map(step_bytes, graphs)) > free_host_bytes() else "hooks"


def _may_measure(cluster: Cluster, source: Source) -> bool:
    return source == "layers" or _is_real(cluster) or _is_cpu(cluster)


def _is_cpu(cluster: Cluster) -> bool:
    """Whether all devices are this machine's CPU, so that layers can be measured on it."""
    return all(device.kind == "cpu" for device in cluster.devices)


def _is_real(cluster: Cluster) -> bool:
    """Whether all devices are in this machine, so that layers can be measured on each kind of them."""
    return not cluster.emulated and not _is_cpu(cluster) and all(map(is_here, cluster.names))


def default_cluster() -> Cluster:
    """All visible accelerators; with none, two emulated ones, said in the log."""
    if has_accelerator():
        return Cluster.discover()
    logger.warning("no accelerator is visible: planning for two emulated devices (baechi.Cluster.virtual(2))")
    return Cluster.virtual(2)
