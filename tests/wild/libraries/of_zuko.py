"""zuko: normalizing flows, whose forward returns a distribution."""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from zuko import flows

from wild.specimen import Batch, Specimen

_DEEP: dict[str, Any] = {"transforms": 2, "hidden_features": (16,)}
_NETWORK: dict[str, Any] = {**_DEEP, "network": {"hidden_features": (8,)}}
_ASKED: dict[str, dict[str, Any]] = {
    **{kind: _DEEP for kind in ("NSF", "MAF", "NICE", "SOSPF", "BPF")},
    **{"NAF": _NETWORK, "CNF": {"hidden_features": (16,), "atol": 0.1, "rtol": 0.1}},
    **{"GF": _DEEP, "GMM": {"components": 3, "hidden_features": (16,)}},
}
"""What each kind of flow is built with."""


class _Likelihood(nn.Module):
    """The negative log likelihood under a flow."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.flow = getattr(flows, kind)(3, context=2, **_ASKED[kind])

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        loss: Tensor = -self.flow(context).log_prob(x).mean()
        return loss


def _points() -> Batch:
    return torch.randn(8, 3), torch.randn(8, 2)


def specimens() -> list[Specimen]:
    """Flows by their kind of transform."""
    return [Specimen("zuko", name, functools.partial(_Likelihood, name), _points) for name in _ASKED]
