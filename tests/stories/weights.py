"""How the stories compare what was learned."""

import torch
from torch import nn


def assert_same_weights(model: nn.Module, plain: nn.Module, tolerance: float = 1e-5) -> None:
    """Assert that two models have the same keys and weights, up to rounding."""
    found, expected = model.state_dict(), plain.state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name].cpu(), weight, rtol=tolerance, atol=tolerance, msg=name)
