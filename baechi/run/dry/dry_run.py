"""Run a plan on its emulated cluster with tensors that have no values.

    model ──valueless weights──▶ assign ──▶ two steps ──▶ timeline
                                   │           │
                                runtime     emulated cluster: places, streams, clocks, memory

Everything is as in a real run on the emulated cluster, except that kernels only infer shapes. So the timeline
is what the emulated cluster would measure, also for models too large for this machine.
"""

import traceback
from dataclasses import dataclass, replace

import torch
from torch import nn

from baechi.backend import DeviceMemoryError
from baechi.backend.processes import size_here
from baechi.backend.virtual.emulation import Emulation
from baechi.cost.gpus import computes_on_gpus
from baechi.cost.optimizers import optimizer_costs
from baechi.errors import BaechiError, DryRunError, PlanError
from baechi.records.cluster import Cluster
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.stages import Stages
from baechi.records.timeline import Timeline
from baechi.run.assign import assign, refuse_distributed
from baechi.run.dry.loop import Optimizer, infer, optimizer_for, train
from baechi.run.dry.preparation import prepared_for_dry_run
from baechi.run.dry.valueless import valueless_inputs, valueless_weights
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.recompute import NOT_THE_SAME_TWICE, differs_when_run_again
from baechi.run.runtime import Reorder
from baechi.run.user_line import line_of
from baechi.torchlib.fakes.kernels import ShapeKernels

_NO_LIMIT_BYTES = 2**62


def dry_run(
    model: nn.Module,
    inputs: Inputs,
    plan: Plan,
    *,
    optimizer: Optimizer = None,
    steps: int = 2,
    reorder: Reorder = True,
    microbatches: Microbatches | None = None,
    whole: Cluster | None = None,
) -> Timeline:
    """Run a plan without values; in replicas, where `whole` has the devices of all of them."""
    refuse_distributed(model)
    if isinstance(optimizer, str):
        optimizer_costs(optimizer)  # raises for an unknown name, and lists the known ones
    if steps < 1:
        raise ValueError(f"steps is {steps}: at least one has to run")
    asked = _Asked(optimizer, steps, reorder, microbatches, whole)
    try:
        return _run(model, inputs, plan, asked)
    except DeviceMemoryError:  # again without limits: the caller learns by how many bytes it is too much
        whole = None if whole is None else _without_limits(whole)
        unlimited = replace(plan, cluster=_without_limits(plan.cluster))
        return _run(model, inputs, unlimited, replace(asked, whole=whole))


@dataclass(frozen=True)
class _Asked:
    """How a plan runs; see `dry_run`."""

    optimizer: Optimizer
    steps: int
    reorder: Reorder
    microbatches: Microbatches | None
    whole: Cluster | None


def _run(model: nn.Module, inputs: Inputs, plan: Plan, asked: _Asked) -> Timeline:
    cluster = plan.cluster  # ranks receive on each link for itself
    reception = "free" if cluster.ranks else cluster.reception
    emulated = replace(plan, cluster=replace(cluster, emulated=True, reception=reception))
    gpus = computes_on_gpus(plan.cluster)
    # one process that stands for ranks runs programs, as they do
    stands = plan.cluster.emulated and plan.cluster.ranks and size_here() == 1
    programs = plan.graph.graph.get("programs") and not plan.cluster.ranks
    stages = Stages(backend="aot_eager") if stands or programs else None
    with prepared_for_dry_run(model, gpus=gpus), valueless_weights(model):
        try:
            if plan.graph.training != model.training:
                model.train(plan.graph.training)
            assign(model, emulated, reorder=asked.reorder, microbatches=asked.microbatches, stages=stages)
            # on GPUs torch's optimizers treat all weights in one list unless told otherwise; on CPU tensors,
            # which the emulation runs with, they would not
            foreach = None if plan.cluster.emulated or _is_cpu(plan) else True
            return _stepped(model, inputs, emulated, asked, foreach)
        except Exception as error:  # the model's code may raise anything on valueless tensors
            explained = _explained(error, plan)
            raise explained from explained.__cause__


def _stepped(model: nn.Module, inputs: Inputs, plan: Plan, asked: _Asked, foreach: bool | None) -> Timeline:
    """The steps. What is valueless is held by this frame only, so that it is gone when the frame is."""
    training, accumulate = plan.graph.training, bool(plan.graph.graph.get("accumulate"))
    updates = optimizer_for(asked.optimizer, model, foreach=foreach) if training else None
    args, kwargs = valueless_inputs((inputs.args, inputs.kwargs))
    cluster = plan.cluster if asked.whole is None else replace(asked.whole, reception="free")
    emulated = Emulation(cluster, ShapeKernels(), len(cluster) // len(plan.cluster))
    with emulated as emulation, torch.set_grad_enabled(training):
        for _ in range(asked.steps):
            emulation.synchronize()  # so that each step begins with idle devices
            if training:
                train(model, args, kwargs, updates, accumulate=accumulate)
            else:
                infer(model, args, kwargs)
        return emulation.timeline()


def _explained(error: Exception, plan: Plan) -> BaechiError:
    """What to raise for an error: our own as it is, else that missing values may be the cause."""
    line = line_of(error)
    _forget_frames(error)
    if isinstance(error, BaechiError):
        return error
    if plan.recompute and differs_when_run_again(error):
        names = ", ".join(plan.recompute)
        return PlanError(f"{names}: one of these {NOT_THE_SAME_TWICE}. Torch says: {_first_line(error)}")
    where = f" at {line}" if line else ""
    explained = DryRunError(
        f"the model does not run without values ({type(error).__name__}{where}: {_first_line(error)}); "
        "the simulated timeline still stands"
    )
    explained.__cause__ = error
    return explained


def _forget_frames(error: BaseException) -> None:
    """Drop the frames of an error and of those behind it: they hold valueless tensors.

    Clearing them is not enough: a frame keeps its function, and that what its closure holds.
    """
    known: set[int] = set()
    behind: list[BaseException | None] = [error]
    while behind:
        one = behind.pop()
        if one is not None and id(one) not in known:
            known.add(id(one))
            traceback.clear_frames(one.__traceback__)
            one.__traceback__ = None
            behind += [one.__cause__, one.__context__]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _without_limits(cluster: Cluster) -> Cluster:
    devices = tuple([replace(device, memory_bytes=_NO_LIMIT_BYTES) for device in cluster.devices])
    return replace(cluster, devices=devices)


def _is_cpu(plan: Plan) -> bool:
    return all(device.kind.lower() == "cpu" for device in plan.cluster.devices)
