"""What the runs and stages of a pipeline take: seconds of devices and host, transfers, bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil
from typing import NamedTuple

from baechi.cost.indexed import FROM_HOST
from baechi.cost.transfer import link_table, transfer_s
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts
from baechi.records.pipeline import Placeable, Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.pipeline.closing import Closing
from baechi.simulate.pipeline.counting.bytes import UnitBytes, bytes_of, gradients_of

_PASSES = 3
"""Adding a gradient to that of the microbatches before reads both and writes one."""


class Send(NamedTuple):
    """A tensor, or a gradient, that goes to another device, once for all that read it there.

    Args:
        source: the device that it leaves; the host's index is that after the last.
        target: the device where it arrives.
        duration_s: how long it travels.
        size_bytes: what travels.
        copy_bytes: the memory that it takes where it arrives.
        readers: the runs (of a gradient: the stages) that wait for it.
    """

    source: int
    target: int
    duration_s: float
    size_bytes: int
    copy_bytes: int
    readers: tuple[int, ...]


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
        uploads: by run, what it is the first to need from the host.
        sends: by run, what it makes for other devices.
        returns: by stage, the gradients that it sends.
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
    uploads: list[list[Send]]
    sends: list[list[Send]]
    returns: list[list[Send]]
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
    def bytes(self) -> UnitBytes:
        """What the units take of memory. It takes longer to count than all else, and bounds do not ask."""
        return self.count_bytes()


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
        costs = PipelineCosts(
            self.cluster,
            units,
            forward_s=[0.0] * runs,
            backward_s=[0.0] * stages,
            add_s=[0.0] * stages,
            host_forward_s=[0.0] * runs,
            host_backward_s=[0.0] * stages,
            add_host_s=[0.0] * stages,
            uploads=[[] for _ in range(runs)],
            sends=[[] for _ in range(runs)],
            returns=[[] for _ in range(stages)],
            forward_after=[list(before) for before in units.forward_after],
            backward_after=[list(before) for before in units.backward_after],
            task_s=(self.cluster.host or HostCosts()).task_s * plan.knows_host,
            transfer_s=(self.cluster.host or HostCosts()).transfer_s * plan.knows_host,
            count_bytes=partial(bytes_of, plan, units, run_of, self._weights_part),
            closing=self._closing(plan, units, gradients_of(plan, units, run_of)),
        )
        self._count_seconds(plan, costs, run_of)
        self._count_transfers(plan, costs, run_of)
        return costs

    def _count_seconds(self, plan: IndexedPlan, costs: PipelineCosts, run_of: Sequence[int]) -> None:
        knows_host, launch_s, training = plan.knows_host, self.cluster.launch_s, self.graph.training
        layers = [layer for layer, run in enumerate(run_of) if run >= 0]
        forward_s, host_s = plan.seconds_of("forward"), plan.host_s["forward"]
        for layer in layers:
            costs.forward_s[run_of[layer]] += forward_s[layer]
            costs.host_forward_s[run_of[layer]] += host_s[layer] + knows_host * plan.own.call_s[layer]
        if training:
            backward_s, host_s = plan.seconds_of("backward"), plan.host_s["backward"]
            of_weights_s = (self.cluster.host or HostCosts()).weights_s * knows_host
            weights_stage = costs.units.weights_stage
            for layer in layers:
                stage = adding = costs.units.stage_of_run[run_of[layer]]
                found = self.indexed.costs[layer]
                part = self._weights_part[layer] if stage in weights_stage else 0.0
                if part:
                    adding = weights_stage[stage]
                    costs.backward_s[adding] += part * backward_s[layer]
                    products = ceil(_additions(found) / 2)  # each has a weight, most a bias
                    costs.host_backward_s[adding] += part * host_s[layer] + products * of_weights_s
                rate = self.cluster.devices[costs.units.device_of[stage]].bytes_per_s
                costs.backward_s[stage] += (1 - part) * backward_s[layer]
                costs.host_backward_s[stage] += (1 - part) * host_s[layer]
                costs.add_s[adding] += _PASSES * found.grad_bytes / rate if rate else 0.0
                if knows_host and found.grad_bytes:
                    costs.add_host_s[adding] += launch_s * _additions(found)
            for returned in self.indexed.returned:
                if returned.is_loss:  # the gradient that backward begins with is one kernel
                    costs.host_backward_s[costs.units.stage_of_run[run_of[returned.maker]]] += (
                        launch_s * knows_host
                    )
        for taken in (costs.host_forward_s, costs.host_backward_s):
            taken[:] = [seconds + costs.task_s for seconds in taken]

    def _count_transfers(self, plan: IndexedPlan, costs: PipelineCosts, run_of: Sequence[int]) -> None:
        indexed, units, host = self.indexed, costs.units, len(self.cluster)
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
                runs = sorted({run_of[layer] for layer in layers})
                sent_s = transfer_s(self._links[source][target], size)
                send = Send(source, target, sent_s, size, held, tuple(runs))
                issuer = runs[0] if maker == FROM_HOST else run_of[maker]
                (costs.uploads if maker == FROM_HOST else costs.sends)[issuer].append(send)
                costs.host_forward_s[issuer] += each_s + own_s
                if maker == FROM_HOST:
                    continue
                for run in runs:
                    _drop(costs.forward_after[run], run_of[maker])
                home = units.stage_of_run[run_of[maker]]
                for stage in sorted({units.stage_of_run[run_of[n]] for n in layers if n in graded}):
                    back_s = transfer_s(self._links[target][source], size)
                    costs.returns[stage].append(Send(target, source, back_s, size, size, (home,)))
                    costs.host_backward_s[stage] += each_s + node_s
                    _drop(costs.backward_after[home], stage)

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


def _additions(costs: LayerCosts) -> float:
    """How many kernels add a layer's gradients to those of the microbatches before: buffers have none."""
    return max(1, len(costs.weights or ()) if costs.grads is None else costs.grads)


def _drop(found: list[int], what: int) -> None:
    if what in found:
        found.remove(what)
