"""What a pipeline gains: its microbatches on one device, one after the other."""

from dataclasses import replace

from baechi.errors import PlanError
from baechi.records.pipeline import Pipeline
from baechi.records.pipeline.stage_units import units_of
from baechi.report.fewer_devices import OneDevice


def on_one_device(pipeline: Pipeline) -> OneDevice | None:
    """Simulate the same microbatches on one device."""
    found = []
    kinds = {(one.kind, one.speed, one.memory_bytes): one for one in reversed(pipeline.plan.cluster.devices)}
    for device in reversed(kinds.values()):
        try:
            plan = replace(
                pipeline.plan,
                device_of=dict.fromkeys(pipeline.plan.device_of, device.name),
                order=(),
                dry=None,
            )
        except PlanError:  # a layer is pinned elsewhere
            continue
        tasks = tuple(units_of(plan).tasks(pipeline.microbatches))
        timeline = Pipeline(plan, pipeline.microbatches, tasks).timeline
        short_bytes = max(0, timeline.peak_bytes.get(device.name, 0) - device.memory_bytes)
        found.append(OneDevice(device.name, timeline.makespan_s, short_bytes))
    return min(found, key=lambda one: (one.short_bytes, one.step_s), default=None)
