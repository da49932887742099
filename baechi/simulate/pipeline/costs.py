"""What the runs and stages of a pipeline take: seconds of devices and host, transfers, bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from baechi.cost.indexed import FROM_HOST
from baechi.cost.transfer import link_table, transfer_s
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Placeable, Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.pipeline.closing import Closing
from baechi.simulate.pipeline.counting.awaits import Awaits, awaits_of, waits_of
from baechi.simulate.pipeline.counting.bytes import UnitBytes, bytes_of, gradients_of
from baechi.simulate.pipeline.counting.seconds import Made, SecondsCounter


class Send(NamedTuple):
    """A tensor, or a gradient, that goes to another device, once for all that read it there.

    Args:
        source: the device that it leaves; the host's index is that after the last.
        target: the device where it arrives.
        duration_s: how long it travels.
        size_bytes: what travels.
        copy_bytes: the memory that it takes where it arrives.
        readers: the runs (of a gradient: the stages) that wait for it.
        early_s: by reader, what it takes of its device before it comes to the first layer that reads it.
        rest_s: what its maker still takes of the device when it is made; gradients are sent at the end.
        paced_s: from the host's begin of its maker until it is made, if the device waits for the host alone.
    """

    source: int
    target: int
    duration_s: float
    size_bytes: int
    copy_bytes: int
    readers: tuple[int, ...]
    early_s: tuple[float, ...]
    rest_s: float = 0.0
    paced_s: float = 0.0


@dataclass(frozen=True)
class PipelineCosts:
    """What every task takes. Lists are by run in forward, and by stage in backward.

    Args:
        cluster: the devices.
        units: the stages and runs.
        forward_s, backward_s: seconds on the device.
        add_s: seconds of adding gradients to those of the microbatches before.
        host_forward_s, host_backward_s: seconds of the host.
        add_host_s: seconds of the host for these additions.
        paced_forward_s, paced_backward_s: from the host's begin of a task until all of it is issued and over,
            where the device waits for the host alone.
        paced_adding_s: the same of backward, with these additions.
        uploads: by run, what it is the first to need from the host.
        sends: by run, what it makes for other devices.
        returns: by stage, the gradients that it sends.
        awaits: by run, the values for which the host waits in its code.
        forward_after, backward_after: what it follows without a transfer.
        task_s: the part of each task's host time that comes before its first kernel.
        transfer_s: the part of a transfer's host time that comes before it is issued.
        count_bytes: counts what the units take of memory: once, if it is asked for.
        closing: what follows the tasks.
    """

    cluster: Cluster
    units: Units
    forward_s: list[float]
    backward_s: list[float]
    add_s: list[float]
    host_forward_s: list[float]
    host_backward_s: list[float]
    add_host_s: list[float]
    paced_forward_s: list[float]
    paced_backward_s: list[float]
    paced_adding_s: list[float]
    uploads: list[list[Send]]
    sends: list[list[Send]]
    returns: list[list[Send]]
    awaits: list[Awaits]
    forward_after: list[list[int]]
    backward_after: list[list[int]]
    task_s: float
    transfer_s: float
    count_bytes: Callable[[], UnitBytes]
    closing: Closing

    @property
    def lead_s(self) -> float:
        """What the host does before the first kernel or transfer starts: it is no part of a step."""
        if not self.host_forward_s:
            return 0.0
        before_s = self.task_s + self.cluster.launch_s + (self.transfer_s if self.uploads[0] else 0.0)
        return min(before_s, self.host_forward_s[0])

    @cached_property
    def sends_before_end(self) -> list[list[tuple[Send, bool]]]:
        """By run, what leaves while it still has work, as it is made; with `last_for_readers`."""
        made = [[send for send in sends if send.rest_s] for sends in self.sends]
        return [last_for_readers(sorted(sends, key=lambda send: -send.rest_s)) for sends in made]

    @cached_property
    def sends_at_end(self) -> list[list[tuple[Send, bool]]]:
        """By run, then by stage, what leaves when it is over; with `last_for_readers`."""
        last = [[send for send in sends if not send.rest_s] for sends in self.sends]
        return [last_for_readers(sends) for sends in (*last, *self.returns)]

    @cached_property
    def bytes(self) -> UnitBytes:
        """What the units take of memory. It takes longer to count than all else, and bounds do not ask."""
        return self.count_bytes()


def last_for_readers(sends: Sequence[Send]) -> list[tuple[Send, bool]]:
    """Each with whether the same readers wait for no later one, at the same layers: the last arrives last.

    Args:
        sends: what a task sends, in this order: on a channel, they arrive in this order.
    """
    keys = [(send.target, send.readers, send.early_s) for send in sends]
    last = {key: number for number, key in enumerate(keys)}
    return [(send, last[key] == number) for number, (send, key) in enumerate(zip(sends, keys, strict=True))]


class PipelineCoster:
    """Costs of many placements of one graph on one cluster: what they share is computed once.

    Args:
        graph: the layer graph, with the costs of one microbatch; its optimizer counts.
        cluster: the devices.
    """

    def __init__(self, graph: LayerGraph, cluster: Cluster) -> None:
        self.graph, self.cluster = graph, cluster
        self.placeable = Placeable.of(graph)
        self.plan = IndexedPlan.empty(graph, cluster).spread
        self.indexed = self.plan.indexed
        number = {name: index for index, name in enumerate(self.placeable.names)}
        self._node = [number[name] for name in self.indexed.names]
        parts = self.placeable.weights_part or (0.0,) * len(number)
        self._weights_part = [parts[node] for node in self._node]
        self._links = link_table(cluster)

    def __call__(self, device_of: Sequence[int]) -> PipelineCosts:
        """The costs of a placement.

        Args:
            device_of: by node in code order, its device.
        """
        units = self.placeable.units(device_of)
        plan = self.plan.with_plan([device_of[node] for node in self._node], ())
        runs, stages = len(units.stage_of_run), len(units.device_of)  # those of weights are stages, too
        run_of = [units.run_of[node] for node in self._node]
        host = self.cluster.host or HostCosts()
        task_s = host.task_s * plan.knows_host
        waits = waits_of(plan, run_of)
        counter = self._counted(plan, units, run_of, waits, task_s)
        costs = PipelineCosts(
            self.cluster,
            units,
            *counter.seconds,
            uploads=[[] for _ in range(runs)],
            sends=[[] for _ in range(runs)],
            returns=[[] for _ in range(stages)],
            awaits=awaits_of(plan, run_of, waits, counter),
            forward_after=[list(before) for before in units.forward_after],
            backward_after=[list(before) for before in units.backward_after],
            task_s=task_s,
            transfer_s=host.transfer_s * plan.knows_host,
            count_bytes=partial(bytes_of, plan, units, run_of, self._weights_part),
            closing=self._closing(plan, units, gradients_of(plan, units, run_of)),
        )
        self._count_transfers(plan, costs, run_of, counter.made)
        for paced, host_s in (
            (costs.paced_forward_s, costs.host_forward_s),
            (costs.paced_backward_s, costs.host_backward_s),
            (costs.paced_adding_s, list(map(sum, zip(costs.host_backward_s, costs.add_host_s, strict=True)))),
        ):
            paced[:] = map(max, paced, host_s)
        return costs

    def _counted(
        self,
        plan: IndexedPlan,
        units: Units,
        run_of: Sequence[int],
        waits: Mapping[int, set[int]],
        task_s: float,
    ) -> SecondsCounter:
        counter = SecondsCounter(plan, units, task_s)
        layers = [layer for layer, run in enumerate(run_of) if run >= 0]
        own = [layer for layer, devices in waits.items() if plan.device_of[layer] in devices]
        counter.forward([(layer, run_of[layer]) for layer in layers], set(own))
        if self.graph.training:
            stage_of = [units.stage_of_run[run] if run >= 0 else run for run in run_of]
            losses = [stage_of[one.maker] for one in self.indexed.returned if one.is_loss]
            back = [(layer, stage_of[layer]) for layer in reversed(layers)]
            counter.backward(back, losses, self._weights_part)
        return counter

    def _count_transfers(
        self,
        plan: IndexedPlan,
        costs: PipelineCosts,
        run_of: Sequence[int],
        made: Sequence[Made],
    ) -> None:
        indexed, units, host = self.indexed, costs.units, len(self.cluster)
        sending_s = self._sending_s(plan, costs, run_of, made)
        each_s = self.cluster.launch_s * plan.knows_host
        node_s = plan.own.node_s * plan.knows_host
        own_s = costs.transfer_s  # autograd records none
        for tensor, maker in enumerate(indexed.source):
            source = host if maker == FROM_HOST else plan.device_of[maker]
            readers: dict[int, list[int]] = {}
            for reader in indexed.consumers[tensor]:
                if plan.device_of[reader] != source:
                    readers.setdefault(plan.device_of[reader], []).append(reader)
            size, held = indexed.size_bytes[tensor], indexed.copy_bytes[tensor]
            graded = set(indexed.graded[tensor]) if self.graph.training else set()
            for target, layers in readers.items():
                firsts = {run_of[layer]: layer for layer in sorted(layers, reverse=True)}
                runs = sorted(firsts)
                early_s = tuple([min(made[firsts[run]].begun_s, sending_s[run]) for run in runs])
                sent_s = transfer_s(self._links[source][target], size)
                issuer = runs[0] if maker == FROM_HOST else run_of[maker]
                costs.host_forward_s[issuer] += each_s + own_s
                send = Send(source, target, sent_s, size, held, tuple(runs), early_s)
                if maker == FROM_HOST:
                    costs.uploads[issuer].append(send)
                    asked = set(indexed.homeward[tensor]) if self.graph.training else set()
                    for stage in sorted({units.stage_of_run[run_of[n]] for n in layers if n in asked}):
                        back_s = transfer_s(self._links[target][host], size)
                        costs.returns[stage].append(Send(target, host, back_s, size, 0, (), ()))
                        costs.host_backward_s[stage] += each_s + node_s
                    continue
                rest_s = max(0.0, costs.forward_s[issuer] - made[maker].done_s)
                costs.sends[issuer].append(send._replace(rest_s=rest_s, paced_s=made[maker].paced_s))
                for run in runs:
                    _drop(costs.forward_after[run], run_of[maker])
                home = units.stage_of_run[run_of[maker]]
                for stage in sorted({units.stage_of_run[run_of[n]] for n in layers if n in graded}):
                    back_s = transfer_s(self._links[target][source], size)
                    costs.returns[stage].append(Send(target, source, back_s, size, size, (home,), (0.0,)))
                    costs.host_backward_s[stage] += each_s + node_s
                    _drop(costs.backward_after[home], stage)

    def _sending_s(
        self, plan: IndexedPlan, costs: PipelineCosts, run_of: Sequence[int], made: Sequence[Made]
    ) -> list[float]:
        """By run, what it has taken of its device when it makes the first tensor that it sends.

        A run waits for what it reads no later than that: so it is as if it began later, as a whole.
        """
        found_s, device_of = list(costs.forward_s), plan.device_of
        for tensor, maker in enumerate(self.indexed.source):
            if maker != FROM_HOST and any(
                [device_of[one] != device_of[maker] for one in self.indexed.consumers[tensor]]
            ):
                found_s[run_of[maker]] = min(found_s[run_of[maker]], made[maker].done_s)
        return found_s

    def _closing(self, plan: IndexedPlan, units: Units, of_stages: Sequence[int]) -> Closing:
        gradients = [0] * len(self.cluster)
        for stage, size_bytes in enumerate(of_stages):
            gradients[units.device_of[stage]] += size_bytes
        return Closing(
            self.cluster,
            self._links,
            self.cluster.launch_s * plan.knows_host,
            (self.cluster.host or HostCosts()).transfer_s * plan.knows_host,
            [(plan.device_of[one.maker], one.size_bytes, one.is_loss) for one in self.indexed.returned],
            not self.indexed.outputs_stay,
            gradients,
        )


def _drop(found: list[int], what: int) -> None:
    if what in found:
        found.remove(what)
