"""baechi: automatic model-parallel placement for PyTorch modules.

    import baechi
    model = baechi.distribute(model, batch)

Names resolve when first used, so that importing takes no time, and placing and reading plans need no torch.

`dispatch`, `place`, `simulate` and `split` are verbs here and rooms (`baechi.place`) as well: the verbs keep
the names.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baechi.backend import DeviceMemoryError
    from baechi.dispatch.batch_size import BatchTuning, tune_batch_size
    from baechi.dispatch.chunks import Rows
    from baechi.dispatch.dispatched_model import Dispatched
    from baechi.dispatch.schedulers import HybridScheduler, RankScheduler, RoundRobin, SimpleScheduler
    from baechi.dispatch.tiles import HaloTiles
    from baechi.dispatch.verb import dispatch
    from baechi.errors import (
        AggregateError,
        BaechiError,
        BatchCoupled,
        CaptureError,
        CheckpointError,
        CompileError,
        DryRunError,
        FatalError,
        PlacementError,
        PlanError,
        RankError,
        RecordError,
        RecoverableError,
        ShardedTensorError,
        StreamRaceError,
        UnsplittableCall,
        WorkerError,
    )
    from baechi.records import Cluster, Device, Host, HostCosts, Inputs, LayerGraph, Link, Plan, Timeline
    from baechi.records.pipeline import Pipeline
    from baechi.records.replicas import Replicas
    from baechi.records.stages import Stages
    from baechi.run import (
        last_step,
        load,
        plan_of,
        reordering,
        restore,
        resume,
        save,
        unsplit,
        whole_state,
    )
    from baechi.split.dimension import SplitDimension
    from baechi.split.spec import BatchSpec
    from baechi.verbs.check import check
    from baechi.verbs.comparison import compare
    from baechi.verbs.distribute import assign, distribute
    from baechi.verbs.dry_run import dry_run
    from baechi.verbs.fit import fits
    from baechi.verbs.pipelines import pipeline
    from baechi.verbs.plans import place, simulate
    from baechi.verbs.profile import profile
    from baechi.verbs.ranks.replica import replica
    from baechi.verbs.replicas import replicate
    from baechi.verbs.split.verb import register_split, split

__version__ = "0.2.0"

_HOMES = {
    "baechi.verbs.distribute": ("assign", "distribute"),
    "baechi.run": (
        "last_step",
        "load",
        "plan_of",
        "reordering",
        "restore",
        "resume",
        "save",
        "unsplit",
        "whole_state",
    ),
    "baechi.split.dimension": ("SplitDimension",),
    "baechi.split.spec": ("BatchSpec",),
    "baechi.verbs.split.verb": ("register_split", "split"),
    "baechi.verbs.check": ("check",),
    "baechi.verbs.comparison": ("compare",),
    "baechi.backend": ("DeviceMemoryError",),
    "baechi.dispatch.chunks": ("Rows",),
    "baechi.dispatch.dispatched_model": ("Dispatched",),
    "baechi.dispatch.schedulers": ("HybridScheduler", "RankScheduler", "RoundRobin", "SimpleScheduler"),
    "baechi.dispatch.tiles": ("HaloTiles",),
    "baechi.dispatch.batch_size": ("BatchTuning", "tune_batch_size"),
    "baechi.dispatch.verb": ("dispatch",),
    "baechi.errors": (
        "AggregateError",
        "BaechiError",
        "BatchCoupled",
        "CaptureError",
        "CheckpointError",
        "CompileError",
        "DryRunError",
        "FatalError",
        "PlacementError",
        "PlanError",
        "RankError",
        "RecordError",
        "RecoverableError",
        "ShardedTensorError",
        "StreamRaceError",
        "UnsplittableCall",
        "WorkerError",
    ),
    "baechi.verbs.dry_run": ("dry_run",),
    "baechi.verbs.fit": ("fits",),
    "baechi.verbs.pipelines": ("pipeline",),
    "baechi.verbs.plans": ("place", "simulate"),
    "baechi.verbs.profile": ("profile",),
    "baechi.verbs.ranks.replica": ("replica",),
    "baechi.verbs.replicas": ("replicate",),
    "baechi.records.pipeline": ("Pipeline",),
    "baechi.records.replicas": ("Replicas",),
    "baechi.records.stages": ("Stages",),
    "baechi.records": (
        "Cluster",
        "Device",
        "Host",
        "HostCosts",
        "Inputs",
        "LayerGraph",
        "Link",
        "Plan",
        "Timeline",
    ),
}

__all__ = [
    "AggregateError",
    "BaechiError",
    "BatchCoupled",
    "BatchSpec",
    "BatchTuning",
    "CaptureError",
    "CheckpointError",
    "Cluster",
    "CompileError",
    "Device",
    "DeviceMemoryError",
    "Dispatched",
    "DryRunError",
    "FatalError",
    "HaloTiles",
    "Host",
    "HostCosts",
    "HybridScheduler",
    "Inputs",
    "LayerGraph",
    "Link",
    "Pipeline",
    "PlacementError",
    "Plan",
    "PlanError",
    "RankError",
    "RankScheduler",
    "RecordError",
    "RecoverableError",
    "Replicas",
    "RoundRobin",
    "Rows",
    "ShardedTensorError",
    "SimpleScheduler",
    "SplitDimension",
    "Stages",
    "StreamRaceError",
    "Timeline",
    "UnsplittableCall",
    "WorkerError",
    "assign",
    "check",
    "compare",
    "dispatch",
    "distribute",
    "dry_run",
    "fits",
    "last_step",
    "load",
    "pipeline",
    "place",
    "plan_of",
    "profile",
    "register_split",
    "reordering",
    "replica",
    "replicate",
    "restore",
    "resume",
    "save",
    "simulate",
    "split",
    "tune_batch_size",
    "unsplit",
    "whole_state",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'baechi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # an import of a room would bind its module to the verb's name
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
