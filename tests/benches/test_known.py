"""Problems whose best known step is written down."""

import json
from pathlib import Path

import pytest

from benches.models.known import FOLDER, problems
from benches.placers import against_known

NETWORK = {
    "maxFPGAs": 2,
    "maxSizePerFPGA": 100.0,
    "nodes": [
        {"id": 3, "fpgaLatency": 1.5, "size": 10.0, "colorClass": 0},
        {"id": 10, "fpgaLatency": 2.0, "size": 20.0, "colorClass": 0},
        {"id": 7, "fpgaLatency": 0.5, "size": 30.0},
    ],
    "edges": [{"sourceId": 10, "destId": 3, "cost": 0.25}, {"sourceId": 3, "destId": 7, "cost": 4.0}],
}


def test_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliseconds, bytes, groups and devices as the file says; layers in topological order."""
    (tmp_path / "small.json").write_text(json.dumps(NETWORK))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    *_, problem = problems(quick=True)
    assert problem.name == f"{tmp_path.name}/small"
    assert problem.known_s is None
    assert list(problem.graph) == ["10", "3", "7"]
    assert problem.graph.nodes["10"]["colocate"] == problem.graph.nodes["3"]["colocate"]
    assert [device.memory_bytes for device in problem.cluster.devices] == [100, 100]
    *_, row = against_known(quick=True)
    assert row.step_s == pytest.approx(4e-3)


def test_known() -> None:
    """The smallest layered graph, without a search: not below the best known by more than its last digit."""
    (row,) = against_known(quick=True)
    assert row.known_s is not None
    assert 0.998 <= row.step_s / row.known_s <= 1.3
