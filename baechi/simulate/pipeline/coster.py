"""Costs of many placements of one graph: what its runs and stages take."""

from collections.abc import Mapping, Sequence
from functools import partial

from baechi.cost.indexed_graph import FROM_HOST
from baechi.cost.transfer import link_table, transfer_s
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Placeable, Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.pipeline.costs import PipelineCosts, Send
from baechi.simulate.pipeline.counting.again import Again, RunningAgain
from baechi.simulate.pipeline.counting.awaits import awaits_of, waits_of
from baechi.simulate.pipeline.counting.bytes import bytes_of, gradients_of
from baechi.simulate.pipeline.counting.seconds import Made, SecondsCounter
from baechi.simulate.pipeline.counting.sums import MovedSums
from baechi.simulate.pipeline.counting.torn import Torn, regions_of
from baechi.simulate.pipeline.step_end import Closing


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
        self._regions = regions_of(self.indexed) if graph.training else []

    def __call__(self, device_of: Sequence[int]) -> PipelineCosts:
        """The costs of a placement."""
        units = self.placeable.units(device_of)
        plan = self.plan.with_plan([device_of[node] for node in self._node], ())
        runs, stages = len(units.stage_of_run), len(units.device_of)  # those of weights are stages, too
        run_of = [units.run_of[node] for node in self._node]
        task_s = plan.host_costs.task_s
        waits = waits_of(plan, run_of)
        counter = SecondsCounter(plan, units, task_s)
        again = self._count(plan, units, run_of, waits, counter).again
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
            transfer_s=plan.host_costs.transfer_s,
            count_bytes=partial(bytes_of, plan, units, run_of, self._weights_part),
            pieces=again.pieces,
            handed_on=self._handed_on(again),
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

    def _count(
        self,
        plan: IndexedPlan,
        units: Units,
        run_of: Sequence[int],
        waits: Mapping[int, set[int]],
        counter: SecondsCounter,
    ) -> RunningAgain:
        layers = [layer for layer, run in enumerate(run_of) if run >= 0]
        own = [layer for layer, devices in waits.items() if plan.device_of[layer] in devices]
        counter.forward([(layer, run_of[layer]) for layer in layers], set(own))
        stage_of = [units.stage_of_run[run] if run >= 0 else run for run in run_of]
        send_s = plan.launch_s + plan.host_costs.transfer_s
        running = RunningAgain(
            Torn(self._regions, plan, stage_of), plan, units, counter, self._travel_s, send_s
        )
        if self.graph.training:
            losses = [stage_of[one.maker] for one in self.indexed.returned if one.is_loss]
            back = [(layer, stage_of[layer]) for layer in reversed(layers)]
            counter.backward(back, losses, self._weights_part, running, MovedSums(plan, stage_of))
        return running

    def _travel_s(self, source: int, target: int, size_bytes: int) -> float:
        return transfer_s(self._links[source][target], size_bytes)

    def _handed_on(self, again: Again) -> list[list[Send]]:
        """By piece, what goes to others while regions run again."""
        return [
            [
                Send(
                    one.source,
                    one.target,
                    self._travel_s(one.source, one.target, one.size_bytes),
                    one.size_bytes,
                    one.size_bytes,
                    (one.reader,),
                    (0.0,),
                )
                for one in handed
            ]
            for handed in again.handed
        ]

    def _count_transfers(
        self,
        plan: IndexedPlan,
        costs: PipelineCosts,
        run_of: Sequence[int],
        made: Sequence[Made],
    ) -> None:
        indexed, units, host = self.indexed, costs.units, len(self.cluster)
        sending_s = self._sending_s(plan, costs, run_of, made)
        each_s, node_s = plan.launch_s, plan.own.node_s
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
            plan.launch_s,
            plan.host_costs.transfer_s,
            [(plan.device_of[one.maker], one.size_bytes, one.is_loss) for one in self.indexed.returned],
            not (self.indexed.outputs_stay or self.cluster.ranks),
            gradients,
        )


def _drop(found: list[int], what: int) -> None:
    if what in found:
        found.remove(what)
