"""From a model to its layer graph, with times and memory on every layer."""

import logging
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import nn

from baechi.backend import unwatched
from baechi.backend.real.discover import has_accelerator
from baechi.capture import capture_each, union
from baechi.cost.gpus import computes_on_gpus
from baechi.measure import estimate, estimate_additions
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.run import refuse_distributed
from baechi.split.notes import note_splits
from baechi.torchlib.autocast import autocast_everywhere
from baechi.torchlib.fakes.gpu_kernels import kernels_of_gpus
from baechi.torchlib.modules.arguments import Arguments
from baechi.verbs.batches import batch_size, part_of_batch
from baechi.verbs.given import Outputs, check_microbatches, check_outputs
from baechi.verbs.measurement import Captured, is_measurable, measure_on

logger = logging.getLogger(__name__)

Names = Iterable[str | type[nn.Module]] | type[nn.Module]
Source = Literal["auto", "hooks", "layers", "estimate"]

_SOURCES = ("auto", "hooks", "layers", "estimate")


def profile(
    model: nn.Module,
    inputs: Any = None,
    *,
    examples: Iterable[Any] | None = None,
    microbatches: int = 1,
    cluster: Cluster | str | Path | None = None,
    training: bool | None = None,
    accumulate: bool = False,
    weights_apart: bool = False,
    programs: bool = False,
    outputs: Outputs = "inputs",
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    rounds: int = 20,
    source: Source = "auto",
    verbose: bool | None = None,
) -> LayerGraph:
    """Capture the layer graph of a model, with times and memory on every layer.

    Under `torch.autocast` costs are those of the dtype that the kernels then compute in. For GPUs, memory is
    what their kernels keep for backward.

    Args:
        model: the model; left exactly as found. It may be on the `meta` device for an estimate.
        inputs: as `distribute` takes them.
        examples: several inputs, in place of `inputs`.
        microbatches: into how many parts the batch is split; the graph is that of one, of the largest where
            rows do not divide.
        cluster: whose devices the times are for; by default as in `distribute`.
        training: costs of training or of inference; `model.training` unless given.
        accumulate: whether gradients of weights are there all the time, since they are added up over
            several steps, or dropped only right before backward. Backward takes the time to add them up.
            Else each step begins without them (`zero_grad()` after the optimizer's step), and they come
            with backward.
        weights_apart: whether, of a step in microbatches, the backward of weights is a task of its own.
            `place` leaves it together where that is not longer.
        programs: whether the model will run as programs (`compile="stages"`): then the host calls no modules,
            and autograd records nothing. It counts where times are estimated and `Cluster.host` is charged.
        outputs: as `distribute` takes it.
        no_split_module_classes: class names, classes or qualified names kept whole.
        split_module_classes: the same of modules that are divided into those inside of them.
        rounds: how often the model, or a layer, runs when it is measured, beside warming up.
        source: `"hooks"` runs the model and times each layer in place; `"layers"` runs each distinct layer
            by itself, with made-up values, so that no model is too large. Both do so on each kind of
            device if the cluster's are this machine's, else on the CPU, which a warning says. `"estimate"`
            takes the devices' datasheets. `"auto"` measures if all devices are this machine's: with hooks
            on the kinds of device where the model fits one, layer by layer on the others.
        verbose: whether to show progress on the standard error; on a terminal only unless given.

    Returns:
        The layer graph.

    Raises:
        CaptureError: the model does not run with the inputs.
        ValueError: an unknown source or choice of outputs, a batch of fewer rows than microbatches, a device
            without rates, or an unknown class to keep whole.
        BaechiError: the model is distributed already.
    """
    if source not in _SOURCES:
        raise ValueError(f"source {source!r} is unknown: known are {', '.join(_SOURCES)}")
    check_outputs(outputs)
    check_microbatches(microbatches)
    refuse_distributed(model)
    cluster = default_cluster() if cluster is None else Cluster.parse(cluster)
    given = [part_of_batch(one, microbatches) for one in Inputs.each_of(inputs, examples)]
    training = model.training if training is None else training
    with unwatched(), autocast_everywhere(), verbosity(verbose), progress("capturing"):
        measured = source in ("hooks", "layers") or (source == "auto" and is_measurable(cluster))
        arguments: list[dict[str, Arguments]] = [{} for _ in given]
        with kernels_of_gpus() if computes_on_gpus(cluster) else nullcontext():
            graphs = capture_each(
                model,
                given,
                training=training,
                no_split_module_classes=no_split_module_classes,
                split_module_classes=split_module_classes,
                arguments=arguments if measured and source != "hooks" else None,
            )
        for each in graphs if programs else ():
            each.graph["programs"] = True
        if source != "estimate" and measured:
            runs = [Captured(*run) for run in zip(graphs, given, arguments, strict=True)]
            with progress("measuring"):
                measure_on(cluster, model, runs, way=source, rounds=rounds)
        graph = union(graphs)
        note_splits(graph, model, batch_size(given[0]) or 1)
        if accumulate:
            graph.graph["accumulate"] = True
        if measured:
            graph.graph["measured"] = True
            if accumulate and training:
                estimate_additions(graph, cluster.devices, cluster.launch_s)
        else:
            estimate(graph, cluster)
    if weights_apart:
        graph.graph["weights_apart"] = True
    graph.graph["microbatches"] = microbatches
    if outputs == "device":
        graph.graph["outputs"] = outputs
    return graph


def default_cluster() -> Cluster:
    """All visible accelerators; with none, two emulated ones, said once a process."""
    if has_accelerator():
        return Cluster.discover()
    _tell_emulated()
    return Cluster.virtual(2)


@cache
def _tell_emulated() -> None:
    logger.warning(
        "no accelerator is visible: two A100-80GB are emulated (baechi.Cluster.virtual(2)), and the model "
        "runs on the CPU; cluster='cuda' insists on GPUs"
    )
