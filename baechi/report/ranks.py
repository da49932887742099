"""A plan over several processes: which rank has what, what it sends to whom, and how to start them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from baechi.errors import PlanError
from baechi.records.cluster import HOST
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.rank_names import are_of_ranks, rank_of
from baechi.report.fold import fold
from baechi.report.tables import Table
from baechi.units import counted, format_bytes

_PORT = 29500


@dataclass(frozen=True)
class Sent:
    """What a rank sends to another one in a step.

    Args:
        target: the other rank.
        messages: how many activations, gradients and weights.
        size_bytes: of all of them.
    """

    target: int
    messages: int
    size_bytes: int


@dataclass(frozen=True)
class RankFacts:
    """A rank of a plan.

    Args:
        rank: its number.
        host: its machine; empty where the plan tells of none.
        device, kind: the device of the plan that it has.
        modules: what lies there, folded by module.
        layers, glue: how many layers, and functional ops between them.
        weight_bytes: parameters and buffers.
        sends: by rank, what it sends there in a step.
    """

    rank: int
    host: str
    device: str
    kind: str
    modules: tuple[str, ...]
    layers: int
    glue: int
    weight_bytes: int
    sends: tuple[Sent, ...]


@dataclass(frozen=True)
class Start:
    """How the processes of a machine are started.

    Args:
        host: the machine; empty where the plan tells of none.
        command: what to type there.
    """

    host: str
    command: str


def ranks_of(made: Plan | Pipeline) -> tuple[RankFacts, ...]:
    """The ranks that a plan needs, as `distribute(plan=)` seats them under torchrun.

    Args:
        made: a plan or a pipeline.

    Raises:
        PlanError: it does not go over ranks, or ranks of one host do not follow each other.
    """
    plan = made.plan if isinstance(made, Pipeline) else made
    _refuse(plan)
    numbers = _numbers(plan)
    sent: dict[int, dict[int, list[int]]] = {number: {} for number in numbers.values()}
    for span in made.timeline.spans:
        source, _, target = span.where.partition(">")
        if span.kind == "transfer" and HOST not in (source, target):
            sent[numbers[source]].setdefault(numbers[target], []).append(span.size_bytes)
    found = tuple([_facts(plan, name, number, sent[number]) for name, number in numbers.items()])
    _check_hosts(found)
    return found


def starts_of(ranks: Sequence[RankFacts], script: str) -> tuple[Start, ...]:
    """What starts all ranks: by host, one command.

    Args:
        ranks: all of them.
        script: what they run.
    """
    by_host = [(host, len(list(each))) for host, each in groupby(ranks, lambda one: one.host)]
    if len(by_host) == 1:
        return (Start(by_host[0][0], f"torchrun --nproc-per-node {len(ranks)} {script}"),)
    where = f"--master-addr {by_host[0][0]} --master-port {_PORT}"
    return tuple(
        Start(
            host,
            f"torchrun --nnodes {len(by_host)} --node-rank {number} --nproc-per-node {each} {where} {script}",
        )
        for number, (host, each) in enumerate(by_host)
    )


def ranks_tables(ranks: Sequence[RankFacts]) -> list[Table]:
    """The ranks, and what they send, for a person."""
    with_hosts = any(one.host for one in ranks)
    columns = ("rank", *(["host"] if with_hosts else []), "device", "modules", "layers", "ops", "weights")
    rows = []
    for one in ranks:
        place = [str(one.rank), *([one.host] if with_hosts else []), f"{one.device} ({one.kind})"]
        sizes = [str(one.layers), str(one.glue), format_bytes(one.weight_bytes)]
        rows.append((*place, ", ".join(one.modules) or _of_no_layer(one), *sizes))
    texts = ("rank", "host", "device", "modules")
    hosts = {one.rank: one.host for one in ranks}
    sent = [
        (
            f"{one.rank} > {to.target}",
            str(to.messages),
            format_bytes(to.size_bytes),
            *([("no" if hosts[to.target] == one.host else "yes")] if with_hosts else []),
        )
        for one in ranks
        for to in one.sends
    ]
    note = (
        "Beside them: scalars, a short message of all ranks in each step, and random states if layers draw."
    )
    links = ("from > to", "messages", "bytes a step", *(["between hosts"] if with_hosts else []))
    return [
        Table(counted(len(ranks), "rank"), columns, tuple(rows), texts),
        Table("What they send", links, tuple(sent), links[:1], note if sent else "They send nothing."),
    ]


def _of_no_layer(one: RankFacts) -> str:
    return "functional ops" if one.glue else "nothing"


def _refuse(plan: Plan) -> None:
    if plan.recompute:
        raise PlanError("the plan runs modules again in backward, and that does not go over ranks")
    if plan.graph.says("shard"):
        raise PlanError("the plan has split layers, and these do not go over ranks: place layers whole")


def _numbers(plan: Plan) -> dict[str, int]:
    """By device, its rank, in this order: as its name says, else those that run something, in order."""
    names = plan.cluster.names
    if are_of_ranks(names):
        told = {name: rank_of(name) or 0 for name in names}
        return dict(sorted(told.items(), key=lambda pair: pair[1]))
    return {name: number for number, name in enumerate(plan.devices_used)}


def _facts(plan: Plan, name: str, number: int, sent: Mapping[int, Sequence[int]]) -> RankFacts:
    names, graph = plan.order_on(name), plan.graph
    rows = [graph.costs(one) for one in names]
    layers = sum(costs.kind == "layer" for costs in rows)
    host = plan.cluster.host_of.get(name)
    return RankFacts(
        rank=number,
        host="" if host is None else host.name,
        device=name,
        kind=plan.cluster.device(name).kind,
        modules=tuple(map(str, fold(graph, names))),
        layers=layers,
        glue=len(names) - layers,
        weight_bytes=int(sum([costs.param_bytes + costs.buffer_bytes for costs in rows])),
        sends=tuple([Sent(target, len(sizes), sum(sizes)) for target, sizes in sorted(sent.items())]),
    )


def _check_hosts(ranks: Sequence[RankFacts]) -> None:
    hosts = [host for host, _ in groupby(ranks, lambda one: one.host)]
    for host in hosts:
        if hosts.count(host) > 1:
            raise PlanError(
                f"ranks {[one.rank for one in ranks if one.host == host]} are of {host or 'no host'}, and "
                "torchrun numbers the ranks of a host one after the other: list devices by host"
            )
