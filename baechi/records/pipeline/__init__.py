"""A step in microbatches: what is scheduled, in which order, and whether that order can run.

In:    a `Plan` whose graph has the costs of one microbatch.
Out:   `Pipeline`, with its stages, runs and tasks.
Start: `units`, then `pipeline`.
"""

from baechi.records.pipeline.pipeline import OrderTried, Pipeline
from baechi.records.pipeline.stage_units import Placeable, units_of
from baechi.records.pipeline.units import Run, Stage, Task, Units, tasks_of

__all__ = ["OrderTried", "Pipeline", "Placeable", "Run", "Stage", "Task", "Units", "tasks_of", "units_of"]
