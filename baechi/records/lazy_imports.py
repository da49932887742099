"""The places where code opens onto a floor that it may not import.

Records are data and import nothing above them. Some names of the public interface are still
verbs on a record: `plan.timeline` and `pipeline.timeline` (simulate), `Cluster.discover()` (asks the machine
and measures it) and `with cluster:` (emulates or times it). `repr` and `print` show records as the report
does, beside bounds that `simulate` knows. And `measure.host()` runs models, which is not the part of
`measure` otherwise. They go through this table, so that the exceptions to the floors are written in one
place, and placing needs no torch.
"""

from importlib import import_module
from typing import Any

LAZY_IMPORTS = {
    "assign": ("baechi.run", "assign"),
    "microbatches": ("baechi.run.pipeline.microbatches", "Microbatches"),
    "simulate": ("baechi.simulate", "simulate"),
    "shortest_step_s": ("baechi.simulate", "shortest_step_s"),
    "shortest_pipeline_s": ("baechi.simulate.pipeline", "shortest_pipeline_s"),
    "costs_of": ("baechi.simulate.pipeline", "costs_of"),
    "simulate_pipeline": ("baechi.simulate.pipeline", "simulate_pipeline"),
    "discover": ("baechi.measure.discovery", "discovered"),
    "describe": ("baechi.report.summary", "describe"),
    "report": ("baechi.report", "to_text"),
    "watch": ("baechi.backend.watch", "watched"),
}


def lazy_import(name: str) -> Any:
    """Import what stands behind a door."""
    module, attribute = LAZY_IMPORTS[name]
    return getattr(import_module(module), attribute)
