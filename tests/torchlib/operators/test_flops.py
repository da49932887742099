"""What an operator computes is known by what it is given and asked for."""

import torch
from torch import nn

import baechi
from baechi.torchlib.operators.facts import flops_of, is_uncounted


def test_a_gradient_that_is_not_asked_for_is_not_counted() -> None:
    """Backward of a convolution for its input, for its weight, and for both: of the same shapes."""
    x, weight = torch.zeros(2, 3, 8, 8, device="meta"), torch.zeros(4, 3, 3, 3, device="meta")
    grad, backward = torch.zeros(2, 4, 8, 8, device="meta"), torch.ops.aten.convolution_backward.default
    found = []
    for wanted in ((True, True), (True, False), (False, True)):
        args = (grad, x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [*wanted, False])
        found.append(flops_of(backward, args, {}, backward(*args)))
    assert found[0] == found[1] + found[2] and min(found) > 0


class Normalized(nn.Linear):
    """As a tower of CLIP ends."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(super().forward(x), dim=-1)


def test_a_norm_is_bound_by_its_bytes() -> None:
    """No warning says that its arithmetic is not known; that of a decomposition is not."""
    x = torch.zeros(4, 8, device="meta")
    norm, svd = torch.ops.aten.linalg_vector_norm.default, torch.ops.aten._linalg_svd.default
    assert not is_uncounted(norm) and is_uncounted(svd)
    graph = baechi.profile(Normalized(8, 8), x, cluster="2xA100-80GB", source="estimate")
    assert not graph.graph.get("uncounted")
