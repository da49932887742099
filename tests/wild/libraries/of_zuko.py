"""zuko: normalizing flows, whose forward returns a distribution."""

import functools

import torch
from torch import Tensor, nn
from zuko import flows

from wild.specimen import Batch, Specimen


class _Likelihood(nn.Module):
    """The negative log likelihood under a flow."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.flow = getattr(flows, kind)(3, context=2, transforms=2, hidden_features=(16,))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        loss: Tensor = -self.flow(context).log_prob(x).mean()
        return loss


def _points() -> Batch:
    return torch.randn(8, 3), torch.randn(8, 2)


def specimens() -> list[Specimen]:
    """Flows by their kind of transform."""
    return [
        Specimen("zuko", name, functools.partial(_Likelihood, name), _points)
        for name in ("NSF", "MAF", "NICE")
    ]
