"""Public is a list."""

import inspect
import subprocess
import sys

import baechi

PUBLIC = {
    "distribute", "profile", "place", "pipeline", "simulate", "assign", "restore", "plan_of", "last_step",
    "dispatch", "Dispatched", "HaloTiles", "HybridScheduler", "RankScheduler", "RoundRobin", "Rows",
    "BatchSpec", "SplitDimension", "register_split", "split",
    "BatchTuning", "SimpleScheduler", "WorkerError", "tune_batch_size",
    "unsplit", "replica", "replicate", "Replicas", "Host",
    "reordering", "check", "compare", "dry_run", "fits", "load", "save", "resume", "whole_state",
    "Cluster", "Device", "HostCosts", "Link", "LayerGraph", "Plan", "Pipeline", "Stages", "Timeline",
    "Inputs",
    "AggregateError", "BaechiError", "BatchCoupled", "CaptureError", "CheckpointError", "DeviceMemoryError",
    "CompileError", "DryRunError", "FatalError", "PlacementError", "PlanError", "RankError",
    "RecordError",
    "RecoverableError", "StreamRaceError", "ShardedTensorError", "UnsplittableCall",
}  # fmt: skip


def test_the_list_is_the_list() -> None:
    """What `__all__` names is what this test names, sorted, and `dir` shows no more."""
    assert set(baechi.__all__) == PUBLIC
    assert baechi.__all__ == sorted(baechi.__all__)
    assert set(dir(baechi)) == PUBLIC | {"__version__"}


def test_every_name_resolves_and_has_a_docstring() -> None:
    """Each name is there and says what it does."""
    for name in PUBLIC:
        assert inspect.getdoc(getattr(baechi, name)), name


def test_functions_document_every_argument() -> None:
    """Each public verb's docstring names each of its arguments."""
    for name in PUBLIC:
        function = getattr(baechi, name)
        if inspect.isfunction(function):
            for argument in inspect.signature(function).parameters:
                assert f"{argument}:" in (inspect.getdoc(function) or ""), f"{name}({argument})"


def test_verbs_are_callable_whatever_was_imported_first() -> None:
    """`baechi.place` is the verb even after the room of that name was imported."""
    code = (
        "import baechi.place, baechi.simulate, baechi; "
        "assert callable(baechi.place) and callable(baechi.simulate)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_planning_loads_no_torch() -> None:
    """Records and placers work where torch was never imported."""
    code = (
        "import sys, baechi; baechi.Plan, baechi.Cluster.uniform(2); "
        "g = baechi.LayerGraph(); g.add_node('a', forward_s=1.0); "
        "baechi.place(g, baechi.Cluster.uniform(2)).timeline; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_refused() -> None:
    """A misspelt name is an AttributeError, as for any module."""
    assert not hasattr(baechi, "distribut")


def test_importing_draws_nothing() -> None:
    """The caller's random numbers are what they were, though names resolve when they are first used."""
    code = """
import baechi
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
before = torch.get_rng_state()
for name in baechi.__all__:
    getattr(baechi, name)
baechi.distribute(model, torch.ones(4, 4), cluster=baechi.Cluster.virtual(2))
print(torch.equal(before, torch.get_rng_state()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
