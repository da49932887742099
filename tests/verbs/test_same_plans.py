"""A plan is the same in every process, whatever the hash seed, the threads, and how the search runs."""

import json
import os
import subprocess
import sys

import pytest
import torch
from verbs.plans_of import digests

HOW = {
    "branches": [("5", "2", "without"), ("1234", "1", "compiled")],
    "encoder": [("77", "3", "without")],
}


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("kind", "seed", "threads", "search"), [(kind, *how) for kind, several in HOW.items() for how in several]
)
def test_same_plans(kind: str, seed: str, threads: str, search: str) -> None:
    """Graphs, plans of each placer, and pipelines, by their text, against those of this process."""
    told = {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "verbs.plans_of", kind, search]
    done = subprocess.run(command, env=os.environ | told, capture_output=True, text=True, check=True)
    assert torch.get_num_threads() != int(threads) or seed != os.environ.get("PYTHONHASHSEED")
    assert json.loads(done.stdout) == digests(kind)
