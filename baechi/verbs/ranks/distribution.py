"""One model over ranks: rank 0 plans, all take its plan, and each keeps its part of the weights.

all      the same model, batch, versions, seed?        fingerprint
rank 0   profile, place, order                         as in one process
all      is the batch split as it should be? assign    before the weights go to their ranks
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from baechi import run as run_room
from baechi.backend.processes import size_here
from baechi.backend.ranks.rendezvous import own_device, wires
from baechi.backend.real.discover import discover
from baechi.errors import PlanError, RankError
from baechi.progress import say, verbosity
from baechi.records.cluster import Cluster
from baechi.records.datasheet import datasheet
from baechi.records.device import Device, Link
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.rank_names import are_of_ranks, name_of
from baechi.records.stages import Stages
from baechi.report.summary import summary
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.pipeline.walk import judge_before
from baechi.torchlib.host_memory import free_host_bytes
from baechi.verbs.application import renamed, seats
from baechi.verbs.pipeline.microbatches import tell_norms
from baechi.verbs.pipeline.request import Splitting
from baechi.verbs.ranks.fingerprint import check_alike, fingerprint
from baechi.verbs.replicas import are_equal

logger = logging.getLogger(__name__)

_BETWEEN = Link(latency_s=1e-4, bytes_per_s=1e9)
"""Between the processes of one machine without accelerators: a guess, nothing was measured."""


@dataclass(frozen=True)
class Ranked:
    """What `distribute` was asked for over ranks.

    Args:
        inputs: the batch; None if it is not given.
        splitting: how the step is split; None for a plain step.
        optimizer: the optimizer, if one was given.
        stages: how programs are made.
        verbose: see `distribute`.
    """

    inputs: list[Inputs] | None
    splitting: Splitting | None
    optimizer: torch.optim.Optimizer | None
    stages: Stages
    verbose: bool | None


def is_over_ranks(cluster: object) -> bool:
    """Whether one model is to run over several processes: where they are, and no devices are named."""
    ranked = isinstance(cluster, Cluster) and are_of_ranks(cluster.names)
    return (cluster is None or ranked) and size_here() > 1


def check_replicas(replicas: object, *, alone: bool) -> None:
    """Raise if a number of replicas is none, or there are no processes for them."""
    if replicas is None:
        return
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
        raise ValueError(f"replicas={replicas!r} has to be a number from 1 on, or left out")
    if alone and replicas > 1:
        raise ValueError(
            f"replicas={replicas} needs several processes, and no cluster=: start them with torchrun, a "
            f"multiple of {replicas}. For other devices of this process there is baechi.dispatch"
        )


def ranks_cluster(asked: Cluster | None = None) -> Cluster:
    """The devices of all ranks: those that were asked for, else as rank 0 knows them."""
    ways, own = wires(), own_device()
    if asked is not None:
        return _of_first_replica(asked, ways.size, ways.replicas)
    name, link = name_of(ways.rank, str(own)), _BETWEEN
    if own.type == "cpu":
        sheet = {**datasheet("CPU"), "memory_bytes": free_host_bytes() // (ways.size * ways.replicas)}
        mine: tuple[Device, Link] = (Device(name, "CPU", **sheet), link)
    else:
        here = discover()
        mine = (replace(here.device(str(own)), name=name), here.link)
    found = ways.from_first(ways.gather_all(mine))
    places = [found[place :: ways.size] for place in range(ways.size)]
    return Cluster(tuple([_least([one for one, _ in each]) for each in places]), link=found[0][1])


def _of_first_replica(cluster: Cluster, size: int, replicas: int) -> Cluster:
    """Of the devices that were asked for, those of a replica, which the plan is for."""
    if replicas == 1 or (len(cluster) == size and not cluster.emulated):
        return cluster
    if len(cluster) != size * replicas:
        raise PlanError(
            f"the cluster has {len(cluster)} devices, and {replicas} replicas of {size} processes have "
            f"{size * replicas}: give all of them, as Cluster.virtual({size * replicas}, ranks=True) has them"
        )
    groups = [cluster.names[first : first + size] for first in range(0, len(cluster), size)]
    if not are_equal(cluster, groups):
        raise PlanError(
            f"replicas need equal devices and links, and those of {', '.join(groups[0])} differ: "
            "order devices so that replicas are alike"
        )
    return cluster.part(groups[0])


def _least(devices: Sequence[Device]) -> Device:
    """The device of a place in the plan, which each replica has: the memory of the smallest."""
    kinds = {one.kind for one in devices}
    if len(kinds) > 1:
        raise PlanError(
            f"replicas need equal devices, and {devices[0].name.partition('/')[0]} of each replica has one "
            f"of {', '.join(sorted(kinds))}: start processes so that replicas are alike"
        )
    return replace(devices[0], memory_bytes=min(one.memory_bytes for one in devices))


def by_first(make: Callable[[], Plan | Pipeline]) -> Plan | Pipeline:
    """What rank 0 makes, on all ranks; an error of it ends all."""
    ways = wires()
    with ways.guarded():
        made = make() if ways.number == 0 else None
        kind, text = ways.from_first(None if made is None else (made.record_kind, made.to_json()))
    kinds: Mapping[str, type[Plan] | type[Pipeline]] = {
        Plan.record_kind: Plan,
        Pipeline.record_kind: Pipeline,
    }
    return made if made is not None else kinds[kind].from_json(text)


_KINDS = 64
"""Over ranks so many kinds of calls are kept unless told: none can run as the code is written."""


def stages_in_ranks(stages: Stages | None) -> Stages:
    """How programs are made: over ranks a model always runs as programs, unless told with torch's kernels."""
    if stages is None:
        return Stages(backend="aot_eager", limit=_KINDS)
    return replace(stages, required=True)


def refuse_in_ranks(asked: Mapping[str, object]) -> None:
    """Raise if what was asked for does not go over ranks."""
    cures = {
        "layers": "place layers whole",
        "examples": "give one batch",
        "regions": "leave compile= out, or say 'stages'",
        "at_first_call": "give distribute the batch",
        "auto": "say how many",
        "outputs": "leave it out: over ranks outputs stay where they are made, and scalars reach every rank",
    }
    for name, cure in cures.items():
        if asked.get(name):
            words = {"layers": "split=", "at_first_call": "no batch", "auto": "microbatches='auto'"}
            what = words.get(name, "compile='regions'" if name == "regions" else f"{name}=")
            raise ValueError(f"{what} does not go over ranks: {cure}")


def seated(plan: Plan | Pipeline, cluster: Cluster) -> Plan | Pipeline:
    """A plan, for the devices of ranks: by kind, and on CPUs, which stand for any device, in order."""
    inside = plan.plan if isinstance(plan, Pipeline) else plan
    if inside.cluster.names != cluster.names:
        devices = inside.cluster.devices
        if len(devices) > len(cluster):
            used = [name for name in inside.cluster.names if name in inside.devices_used]
            devices = tuple([inside.cluster.device(name) for name in used])
        if len(devices) > len(cluster):
            raise PlanError(
                f"the plan uses {len(devices)} devices, and there are {len(cluster)} ranks, with one device "
                f"each: start {len(devices)} processes"
            )
        if all(device.kind == "CPU" for device in cluster.devices):
            there = dict(zip([one.name for one in devices], cluster.names, strict=False))
            between = inside.cluster.link_between  # hosts have links, too
            links = {(there[a], there[b]): between(a, b) for a in there for b in there if a != b}
            kept = tuple([replace(one, name=there[one.name]) for one in devices])
            idle = cluster.devices[len(kept) :]
            target = replace(inside.cluster, devices=kept + idle, links=links, hosts=(), emulated=False)
        else:
            there, target = seats(inside, cluster), cluster
        inside = renamed(inside, target, there)
    if isinstance(plan, Plan):
        return inside
    return (
        plan
        if inside is plan.plan
        else replace(plan, plan=inside, limits={}, tried=(), unsplit=None, dry=None)
    )


def check_ranks(model: nn.Module, ranked: Ranked, asked: Mapping[str, object]) -> None:
    """Raise on all ranks if they were given something else."""
    ways = wires()
    with ways.guarded():
        check_alike(ways, fingerprint(model, ranked.inputs or [], asked))


def assign_in_ranks(model: nn.Module, made: Plan | Pipeline, ranked: Ranked) -> nn.Module:
    """Distribute a model by one plan; afterwards each rank has its part of the weights."""
    ways = wires()
    with ways.guarded(), verbosity(ranked.verbose if ways.number == 0 else False):
        microbatches = None
        plan = made.plan if isinstance(made, Pipeline) else made
        if isinstance(made, Pipeline) and ranked.splitting is not None:
            if made.microbatches > 1 or ranked.splitting.loss is not None:
                microbatches = ranked.splitting.microbatches_of(made)
                tell_norms(model)
                _judge(model, microbatches, ranked)
        run_room.assign(
            model,
            plan,
            reorder=False,
            optimizer=ranked.optimizer,
            microbatches=microbatches,
            stages=ranked.stages,
        )
        ways.predicted_s = ways.from_first(made.timeline.makespan_s if ways.rank == 0 else 0.0)
        say(lambda: summary(run_room.plan_of(model)))
    return model


def _judge(model: nn.Module, microbatches: Microbatches, ranked: Ranked) -> None:
    """Find out what the losses of microbatches count, while all weights are here; on all ranks alike."""
    verdict = None
    if ranked.inputs:
        (inputs,) = ranked.inputs
        verdict = judge_before(model, microbatches, inputs)
    if verdict is None:
        if microbatches.told is None:
            why = "its weights have no values yet" if ranked.inputs else "no batch is given"
            raise RankError(
                f"over ranks a batch is looked at before the weights go to their ranks, and {why}: say what "
                "the loss of each microbatch counts with loss_weights="
                + ("" if ranked.inputs else ", or give distribute the batch beside the plan")
            )
        return
    ways = wires()
    known = str(sorted(verdict.shares.items())), str(sorted(verdict.found.dims.items()))
    said: list[Any] = ways.gather_all(known)
    for rank, one in enumerate(said):
        if one != said[0]:
            raise RankError(
                f"rank {rank} finds that losses of microbatches count {one[0]}, rank 0 that they count "
                f"{said[0][0]}: their weights or batches differ. Seed them alike, or say loss_weights=",
                on_all=True,
            )
