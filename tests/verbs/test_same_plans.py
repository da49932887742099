"""A plan is the same in every process, whatever the hash seed, the threads, and whether numba is there.

That the compiled search finds what Python finds: `tests/place/search/test_compiler.py`.
"""

import json
import os
import subprocess
import sys

import pytest
from verbs.plans_of import digests


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(("kind", "seed", "threads"), [("branches", "5", "2"), ("encoder", "77", "3")])
def test_same_plans(kind: str, seed: str, threads: str) -> None:
    """Graphs, plans of each placer, and pipelines, by their text, against those of this process."""
    told = {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "verbs.plans_of", kind, "without"]
    done = subprocess.run(command, env=os.environ | told, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == digests(kind)
