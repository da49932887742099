"""Under autocast, costs are those of the dtype that kernels compute in."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import baechi
from baechi import Cluster, LayerGraph

HALVES = (torch.bfloat16, torch.float16)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.LayerNorm(512))


def profiled(source: str = "estimate") -> LayerGraph:
    inputs = torch.ones(512, 512)
    return baechi.profile(model(), inputs, cluster=Cluster.virtual(2), source=source, rounds=1)


@contextmanager
def casting(kind: str, dtype: torch.dtype) -> Iterator[None]:
    """As `torch.autocast`, which refuses to be on for a device that is not there."""
    before = torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, True)
    torch.set_autocast_dtype(kind, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, False)
        torch.set_autocast_dtype(kind, before)
        torch.clear_autocast_cache()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_matrix_products_take_the_rate_of_their_dtype(
    kind: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether autocast is meant for the CPU or for cards: what is cast is faster and half as large, what
    is not stays as it was; the rest of the process is left alone."""
    plain = profiled()
    with casting(kind, dtype):
        cast = profiled()
    name = str(dtype).removeprefix("torch.")
    assert [cast.nodes[n]["dtype"] for n in ("0", "1", "2")] == [name, name, name]
    assert {plain.nodes[n]["dtype"] for n in plain.placed()} == {"float32"}
    rates = Cluster.virtual(2).devices[0].flops_per_s
    for layer in ("0", "2"):
        before, after = (graph.nodes[layer]["forward_s"]["A100-80GB"] for graph in (plain, cast))
        assert before / after > 3 and rates[name] / rates["float32"] > 3
        assert sum(cast.nodes[layer]["backward_s"].values()) < sum(plain.nodes[layer]["backward_s"].values())
    assert cast.edges["0", "1"]["bytes"] == plain.edges["0", "1"]["bytes"] / 2
    assert cast.amount("0", "param_bytes") == plain.amount("0", "param_bytes")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("source", ["hooks", "layers"])
def test_measured_under_autocast(source: str) -> None:
    """Layers run as they will: what is handed on is half as large, and everything has seconds."""
    with casting("cuda", torch.bfloat16):
        graph = profiled(source)
    assert graph.edges["0", "1"]["bytes"] == 512 * 512 * 2
    assert all(graph.amount(name, "forward_s") > 0 for name in graph.placed())


def test_a_plan_for_autocast_runs_under_it() -> None:
    """The same numbers as the plain model, both under autocast."""
    torch.manual_seed(0)
    plain = model().eval()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        reference = plain(torch.ones(4, 512))
        cluster = Cluster.virtual(2)
        baechi.distribute(plain, torch.ones(4, 512), cluster=cluster, placer="random:0")
        with cluster:
            assert torch.equal(plain(torch.ones(4, 512)), reference)
