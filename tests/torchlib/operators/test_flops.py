"""What an operator computes is known by what it is given and asked for."""

import torch

from baechi.torchlib.operators.facts import flops_of


def test_a_gradient_that_is_not_asked_for_is_not_counted() -> None:
    """Backward of a convolution for its input, for its weight, and for both: of the same shapes."""
    x, weight = torch.zeros(2, 3, 8, 8, device="meta"), torch.zeros(4, 3, 3, 3, device="meta")
    grad, backward = torch.zeros(2, 4, 8, 8, device="meta"), torch.ops.aten.convolution_backward.default
    found = []
    for wanted in ((True, True), (True, False), (False, True)):
        args = (grad, x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [*wanted, False])
        found.append(flops_of(backward, args, {}, backward(*args)))
    assert found[0] == found[1] + found[2] and min(found) > 0
