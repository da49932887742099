"""A time that no order of a pipeline can beat.

- device: what comes before its first task, all its work, what comes after its last;
- channel: the same for all that it carries;
- way: the longest way of one microbatch through the model and back.

For a chain without transfers the first is the bound of the literature, max over stages of
`sum of f before + m (f + b) + sum of b before`.
"""

from baechi.simulate.pipeline.costs import PipelineCosts, Send
from baechi.simulate.pipeline.rules import tails_s


def shortest_pipeline_s(costs: PipelineCosts, microbatches: int) -> float:
    """A time that no order can beat, whatever the memory and the host.

    Args:
        costs: of the pipeline.
        microbatches: how many.
    """
    units = costs.units
    heads, (runs_s, stages_s) = _heads_s(costs), tails_s(costs)
    ends_s = [tail - own for tail, own in zip(stages_s, costs.backward_s, strict=True)]
    if not units.training:
        ends_s = []
    bounds_s = [head + tail for head, tail in zip(heads, runs_s, strict=True)]
    for device in range(len(costs.cluster)):
        runs = [run for run, stage in enumerate(units.stage_of_run) if units.device_of[stage] == device]
        stages = [stage for stage, where in enumerate(units.device_of) if where == device]
        if not runs:
            continue
        work_s = microbatches * sum([costs.forward_s[run] for run in runs])
        if units.training:
            work_s += microbatches * sum([costs.backward_s[stage] for stage in stages])
            work_s += (microbatches - 1) * sum([costs.add_s[stage] for stage in stages])
            after_s = min([ends_s[stage] for stage in stages])
        else:
            after_s = min([runs_s[run] - costs.forward_s[run] for run in runs])
        bounds_s.append(min([heads[run] for run in runs]) + work_s + after_s)
    return max([0.0, *bounds_s, *_channels_s(costs, microbatches, heads, runs_s, stages_s)])


def _channels_s(
    costs: PipelineCosts, microbatches: int, heads: list[float], runs_s: list[float], stages_s: list[float]
) -> list[float]:
    """By channel: what comes before, all that it carries, what comes after."""
    serial = costs.cluster.reception == "serial"
    busy_s: dict[object, list[tuple[float, float, float]]] = {}

    def carries(send: Send, before_s: float, after_s: float) -> None:
        key = send.target if serial else (send.source, send.target)
        busy_s.setdefault(key, []).append((before_s, send.duration_s, after_s))

    for run, sends in enumerate(costs.sends):
        for send in sends:
            carries(send, heads[run] + costs.forward_s[run], _after_s(send, runs_s))
    for sends in costs.uploads:
        for send in sends:
            carries(send, 0.0, _after_s(send, runs_s))
    for stage, sends in enumerate(costs.returns):
        own = costs.units.runs_of[stage]
        before_s = max([heads[run] + costs.forward_s[run] for run in own]) + costs.backward_s[stage]
        for send in sends:
            carries(send, before_s, stages_s[send.readers[0]])
    return [
        min([before for before, _, _ in found])
        + microbatches * sum([duration for _, duration, _ in found])
        + min([after for _, _, after in found])
        for found in busy_s.values()
    ]


def _after_s(send: Send, runs_s: list[float]) -> float:
    return max([runs_s[reader] for reader in send.readers], default=0.0)


def _heads_s(costs: PipelineCosts) -> list[float]:
    """The longest way to the begin of each run, from the begin of its microbatch."""
    heads = [0.0] * len(costs.forward_s)
    for sends in costs.uploads:
        for send in sends:
            for reader in send.readers:
                heads[reader] = max(heads[reader], send.duration_s)
    for run, before in enumerate(costs.forward_after):  # runs are in code order, so all before are final
        for earlier in before:
            heads[run] = max(heads[run], heads[earlier] + costs.forward_s[earlier])
        for send in costs.sends[run]:
            for reader in send.readers:
                arrival_s = heads[run] + costs.forward_s[run] + send.duration_s
                heads[reader] = max(heads[reader], arrival_s)
    return heads
