"""Which run and stage a call of the model's code belongs to, worked out once for a pipeline."""

from collections import Counter

from baechi.cost.regions import calls_of
from baechi.records.pipeline import Pipeline
from baechi.records.pipeline.units import NOWHERE
from baechi.run.step.call_sites import Site


class Route:
    """The way of a microbatch through the runs of a pipeline.

    Args:
        pipeline: the pipeline.

    Attributes:
        run_of: by node of the graph, its run.
        stage_of_run: by run, its stage.
        place_of_stage: by stage, its device.
        stage_of_weight: by name of a weight, the stage where the graph has it.
        gradients_from: by stage, the stages whose gradients it needs.
        node_at: by site in the model's code, the functional op that the graph has there.
        functions: the names of the functions that the graph has as nodes.
        run_of_layer: by module that is a layer, the run that all of its calls belong to; None if they do not.
        runs_of_region: by module that backward runs again, the run that each of its calls begins in.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        units, plan = pipeline.units, pipeline.plan
        names = plan.cluster.names
        pairs = zip(plan.graph.code_order(), units.run_of, strict=True)
        self.run_of = {node: run for node, run in pairs if run != NOWHERE}
        self.stage_of_run = units.stage_of_run
        self.place_of_stage = tuple(names[device] for device in units.device_of)
        self.gradients_from = units.backward_after
        self.stage_of_weight = {
            weight: self.stage_of_run[self.run_of[node]]
            for node, costs in plan.graph.placed_costs()
            if node in self.run_of
            for weight in costs.weights or ()
        }
        self.node_at: dict[Site, str] = {}
        after, ops = "", Counter[str]()
        for node, costs in plan.graph.placed_costs():
            if costs.kind == "layer":
                after, ops = (after, ops) if costs.unread else (node, Counter())
            elif not costs.on_host:
                function = costs.type or ""
                self.node_at[Site(after, function, ops[function])] = node
                ops[function] += 1
        self.run_of_layer: dict[str, int | None] = {}
        for node, costs in plan.graph.placed_costs():
            if costs.kind == "layer":
                layer, run = plan.graph.module_of(node), self.run_of.get(node)
                self.run_of_layer[layer] = run if self.run_of_layer.get(layer, run) == run else None
        self.functions = frozenset(site.function for site in self.node_at)
        self.runs_of_region = {
            region: [self._first_run(call) for call in calls]
            for region, calls in calls_of(plan.graph, plan.recompute).items()
        }

    def _first_run(self, nodes: list[str]) -> int | None:
        return next((self.run_of[node] for node in nodes if node in self.run_of), None)
