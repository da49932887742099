"""Predictions for GPUs keep what GPUs keep for backward; torch describes the results of CUDA's kernels."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import baechi
from baechi.torchlib.fakes.gpu_kernels import kernels_of_gpus

aten = torch.ops.aten
BATCH, HEADS, ROWS, WIDTH = 2, 4, 64, 16
SHAPE = (BATCH, HEADS, ROWS, WIDTH)


class Attends(nn.Module):
    """Attention with dropout, as most transformers have it, or dropout alone."""

    def __init__(self, p: float, *, attends: bool) -> None:
        super().__init__()
        self.p, self.attends = p, attends
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.attends:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=self.p)
        return F.dropout(x, self.p, True)


def test_attention_with_dropout_is_one_kernel() -> None:
    """It keeps its output and a number a row, as CUDA's kernels do."""
    with FakeTensorMode(), kernels_of_gpus():
        q, k, v = (torch.randn(SHAPE, requires_grad=True) for _ in range(3))
        made = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True)
        ours = {made.grad_fn._saved_output.shape, made.grad_fn._saved_logsumexp.shape}  # type: ignore[union-attr]
    on_meta = [torch.empty(SHAPE, device="meta") for _ in range(3)]
    cuda = aten._scaled_dot_product_efficient_attention(*on_meta, None, True, 0.5, True)
    assert ours == {cuda[0].shape, cuda[1].shape}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_a_mask(dtype: torch.dtype) -> None:
    """One byte an element, as CUDA's kernel."""
    with FakeTensorMode(), kernels_of_gpus():
        x = torch.randn(SHAPE, dtype=dtype, requires_grad=True)
        mask = F.dropout(x, 0.5, True).grad_fn._saved_result1  # type: ignore[union-attr]
    _, cuda = aten.native_dropout(torch.empty(SHAPE, dtype=dtype, device="meta"), 0.5, True)
    assert (mask.dtype, mask.shape) == (cuda.dtype, cuda.shape)


def test_what_is_not_watched_is_as_ever() -> None:
    """Another thread may train on the CPU meanwhile: it draws and drops as it did."""
    x = torch.randn(SHAPE, requires_grad=True)

    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return F.dropout(x, 0.5, True), F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    expected = run()
    with kernels_of_gpus():
        found = run()
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert [one.grad_fn.name() for one in expected] == [one.grad_fn.name() for one in found]  # type: ignore[union-attr]
    after = run()
    assert after[0].grad_fn.name() == expected[0].grad_fn.name()  # type: ignore[union-attr]


def peak_bytes(p: float, cluster: baechi.Cluster, *, attends: bool) -> tuple[int, int]:
    """Of a step, by a dry run and as simulated."""
    model, x = Attends(p, attends=attends).train(), torch.randn(SHAPE)
    graph = baechi.profile(model, x, cluster=cluster, training=True, source="estimate")
    plan = baechi.place(graph, cluster, "m-etf")
    timelines = baechi.dry_run(model, x, plan), baechi.simulate(plan)
    dry, simulated = [next(iter(timeline.peak_bytes.values())) for timeline in timelines]
    return dry, simulated


@pytest.mark.parametrize("attends", [True, False])
def test_predicted_peaks(attends: bool) -> None:
    """For a GPU a step is predicted to keep what its kernels keep; for emulated devices what the CPU's do."""
    gpu, emulated = baechi.Cluster.uniform(1), baechi.Cluster.virtual(1)
    of_host = baechi.Cluster.parse(f"1x(1x{gpu.devices[0].kind})")
    on_gpu = peak_bytes(0.5, gpu, attends=attends)
    assert on_gpu == peak_bytes(0.5, of_host, attends=attends)
    on_cpu = peak_bytes(0.5, emulated, attends=attends)
    if attends:
        assert on_gpu == peak_bytes(0, gpu, attends=True) == peak_bytes(0, emulated, attends=True)
        assert on_cpu[0] > 3 * on_gpu[0]  # all probabilities
    else:
        factors_less_mask = 3 * torch.Size(SHAPE).numel()
        assert [cpu - gpu for cpu, gpu in zip(on_cpu, on_gpu, strict=True)] == [factors_less_mask] * 2


class Meets(nn.Module):
    """Attention with dropout over what two layers make."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.first(x), self.second(x)
        return F.scaled_dot_product_attention(query, key, key, dropout_p=0.5)


def test_what_draws_stays_beside_its_input() -> None:
    """Attention with dropout is bound to the layer before it, whichever kernel computes it."""
    for cluster in (baechi.Cluster.uniform(2), baechi.Cluster.virtual(2)):
        model = Meets().train()
        graph = baechi.profile(model, torch.randn(SHAPE), cluster=cluster, training=True, source="estimate")
        (costs,) = [costs for _, costs in graph.placed_costs() if costs.kind == "glue"]
        assert costs.colocate and not costs.follows
