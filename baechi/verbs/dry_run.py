"""A dry run: a plan's steps on its emulated cluster, without values."""

from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline
from baechi.records.replicas import Replicas
from baechi.records.timeline import Timeline
from baechi.run.dry.dry_run import dry_run as run_dry
from baechi.run.pipeline.batch.shares import Told
from baechi.run.pipeline.microbatches import Microbatches
from baechi.verbs.given import PlanLike, read_plan
from baechi.verbs.reordering import ReorderLike, decided


def dry_run(
    model: nn.Module,
    inputs: Any,
    plan: PlanLike | Pipeline | Replicas,
    *,
    optimizer: str | torch.optim.Optimizer | None = None,
    steps: int = 2,
    reorder: ReorderLike = "auto",
) -> Timeline:
    """Run a plan without values: what a step takes, and how full each device gets.

    Streams, transfers, memory and the host are those of an emulated run; kernels are shape functions. So it
    takes seconds, no memory for weights or activations, and holds for any architecture. It trains if the
    plan's graph is of training: backward from the losses (outputs of one element), else from all outputs.

    Kernels, and what they keep for backward, are those of the CPU. Kernel times are the datasheet's.

    Args:
        model: the model that the plan is for, on any device or `meta`; left exactly as found.
        inputs: as `distribute` takes them; one example.
        plan: the plan, or its file; or a pipeline, whose microbatches count by their rows. Its cluster may be
            emulated, real, or to plan for. Of `Replicas`, on devices of ranks, the first one runs, and its
            gradients are added up with the others'.
        optimizer: its name, or an optimizer of this model; the one that the plan's graph notes, unless given.
        steps: how many steps run; the first one makes the optimizer's state.
        reorder: as `distribute` takes it.

    Returns:
        The last step; its `source` is `"dry run"`. Where a device is too small, its peak is above its
        memory.

    Raises:
        DryRunError: the model decides by values of activations or weights, or does not run without values.
        PlanError: the plan is of another model.
        BaechiError: the model is distributed already.
        ValueError: an unknown optimizer, or `steps` below 1.
    """
    whole = None
    if isinstance(plan, Replicas):
        whole, plan = plan, plan.pipeline
        if not (whole.cluster.emulated and whole.cluster.ranks):
            raise ValueError(
                f"replicas run dry on emulated devices of ranks, and {whole.cluster.names[0]} is none: "
                f"replicate for Cluster.virtual({len(whole.cluster)}, ranks=True), or run .pipeline dry"
            )
    split = Microbatches(plan, told=Told("rows")) if isinstance(plan, Pipeline) else None
    plan = plan.plan if isinstance(plan, Pipeline) else read_plan(plan)
    order = False if split is not None else decided(reorder, plan)
    optimizer = plan.graph.graph.get("optimizer") if optimizer is None else optimizer
    given = Inputs.of(inputs)
    return run_dry(
        model,
        given,
        plan,
        optimizer=optimizer,
        steps=steps,
        reorder=order,
        microbatches=split,
        whole=None if whole is None else whole.cluster,
    )
