"""What a step would take if the backward of weights were a task of its own (zero bubble): a prediction.

    backward of a stage   B B B B
    apart                 B B | W W     the next device gets its gradient after two; W fills what is idle

A stage's W is one more stage on its device, which follows it and makes nothing for others. So list
scheduling and the replay need nothing new. Nothing of this runs, and memory is not counted: autograd's graph
is kept until W.
"""

from collections.abc import Mapping
from dataclasses import replace

from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.pipeline.units import Units
from baechi.simulate.pipeline import PipelineCosts, costs_of
from baechi.simulate.pipeline.listing import listed
from baechi.simulate.pipeline.replay import Replay
from baechi.simulate.pipeline.rules import RULES, limits_of

_HALF = 0.5
"""Of a layer with weights, backward multiplies as often for its weights as for its input."""


def apart_s(made: Pipeline) -> float:
    """The shortest step that simple list scheduling finds, the backward of weights apart; host included.

    Args:
        made: a pipeline; its placement is kept.
    """
    costs, number = with_weights_apart(costs_of(made.plan), made.plan.graph), made.microbatches
    found = []
    for ranks_of in RULES.values():
        ranks = ranks_of(costs, number)
        for allowed in dict.fromkeys(list(limits_of(costs, number))[:: max(1, number // 4)]):
            schedule = listed(costs, number, ranks, allowed, in_code_order=True)
            found.append(Replay(costs, number, schedule.started).makespan_s)
    return min(found)


def with_weights_apart(costs: PipelineCosts, graph: LayerGraph) -> PipelineCosts:
    """Costs with one more stage for each that has weights.

    Args:
        costs: of a pipeline.
        graph: its layer graph.
    """
    shares, units = _shares(costs, graph), costs.units
    stages = [stage for stage, share in enumerate(shares) if share]
    left_s = [seconds * (1 - share) for seconds, share in zip(costs.backward_s, shares, strict=True)]
    weights_s = [costs.backward_s[stage] * shares[stage] for stage in stages]
    host_s = [(costs.host_backward_s[stage] - costs.task_s) * shares[stage] for stage in stages]
    host_left_s = list(costs.host_backward_s)
    for stage, seconds in zip(stages, host_s, strict=True):
        host_left_s[stage] -= seconds
    at_once = [0.0 if shares[stage] else seconds for stage, seconds in enumerate(costs.add_s)]
    host_at_once = [0.0 if shares[stage] else seconds for stage, seconds in enumerate(costs.add_host_s)]
    return replace(
        costs,
        units=_more_units(units, stages),
        backward_s=left_s + weights_s,
        host_backward_s=host_left_s + [seconds + costs.task_s for seconds in host_s],
        add_s=at_once + [costs.add_s[stage] for stage in stages],
        add_host_s=host_at_once + [costs.add_host_s[stage] for stage in stages],
        returns=[*costs.returns, *[[] for _ in stages]],
        backward_after=[*costs.backward_after, *[[stage] for stage in stages]],
    )


def _more_units(units: Units, stages: list[int]) -> Units:
    deepest = max([behind for _, behind in units.depths], default=0) + 1
    return replace(
        units,
        device_of=(*units.device_of, *[units.device_of[stage] for stage in stages]),
        depths=(*units.depths, *[(units.depths[stage][0], deepest) for stage in stages]),
        runs_of=(*units.runs_of, *[() for _ in stages]),
        backward_after=(*units.backward_after, *[(stage,) for stage in stages]),
    )


def _shares(costs: PipelineCosts, graph: LayerGraph) -> list[float]:
    """By stage, the part of its backward that only weights wait for."""
    units, names = costs.units, graph.code_order()
    of_weights, whole = [0.0] * len(units.device_of), [0.0] * len(units.device_of)
    for name, run in zip(names, units.run_of, strict=True):
        if run < 0:
            continue
        stage, found = units.stage_of_run[run], graph.costs(name)
        given, kind = found.backward_s, costs.cluster.devices[units.device_of[stage]].kind
        seconds = given[kind] if isinstance(given, Mapping) else given
        is_first = not any(not graph.edge_costs(source, name).no_grad for source in graph.predecessors(name))
        whole[stage] += seconds
        of_weights[stage] += seconds * (0.0 if not found.grad_bytes else 1.0 if is_first else _HALF)
    return [part / all_ if all_ else 0.0 for part, all_ in zip(of_weights, whole, strict=True)]
