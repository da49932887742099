"""tune_batch_size: seconds by rows on the emulated clock, and where memory ends."""

import pytest
import torch
from dispatch.chunks_of import mlp

import baechi

X = torch.zeros(100, 8)


def test_seconds_by_rows_are_a_pace_for_schedulers() -> None:
    cluster = baechi.Cluster.virtual(2)
    with cluster, torch.no_grad():
        found = baechi.tune_batch_size(mlp(), "cpu:0", X)
        again = baechi.tune_batch_size(mlp(), "cpu:0", X)
    assert list(found.seconds) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert again.seconds == pytest.approx(dict(found.seconds))  # the emulated clock repeats
    assert (found.best, found.largest, found.full) == (100, 100, None)  # launches count most here
    pace_s = {"cpu:0": found.seconds, "cpu:1": found.seconds}
    scheduler = baechi.HybridScheduler(cluster, found.best, policy="earliest_finish", pace_s=pace_s)
    with cluster, torch.no_grad():
        baechi.dispatch(mlp(), scheduler)(X)


def test_it_stops_where_memory_is_full() -> None:
    with baechi.Cluster.virtual(1, memory=8_000), torch.no_grad():
        found = baechi.tune_batch_size(mlp(), "cpu:0", X)
        assert found.full == 2 * found.largest
        assert 1 <= found.largest < 64
    with baechi.Cluster.virtual(1, memory=900), torch.no_grad():
        with pytest.raises(baechi.FatalError, match="no memory for a chunk of one row"):
            baechi.tune_batch_size(mlp(), "cpu:0", X)
