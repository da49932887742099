"""What models make of their last layer: losses, numbers beside them, outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CLASSES = 6
WEIGHTS = torch.tensor([0.1, 3.0, 1.0, 2.0, 0.5, 4.0])


@dataclass
class Given:
    """What an objective may use.

    Args:
        made: of the last layer, with a row for each row of the batch.
        before: of the layer before it.
        x: the input.
        labels: integers for each row.
        targets: numbers as `made` has them.
        mask: by row, a weight.
        bank: rows of steps before.
        a, b: numbers by which cases differ.
    """

    made: Tensor
    before: Tensor
    x: Tensor
    labels: Tensor
    targets: Tensor
    mask: Tensor
    bank: Tensor
    a: float
    b: float


Objective = Callable[[Given], Tensor]


def _each(g: Given) -> Tensor:
    return F.cross_entropy(g.made, g.labels.clamp(min=0), reduction="none")


def _error(g: Given) -> Tensor:
    return (g.made - g.targets).square().mean(-1)


def _kept(g: Given) -> Tensor:
    return (g.labels >= 0).to(g.made)


def _alike(g: Given) -> Tensor:
    same = g.labels[:, None] == g.labels
    return (same & ~torch.eye(len(g.labels), dtype=torch.bool)).to(g.made)


def _distances(g: Given) -> Tensor:
    return (g.made[:, None] - g.made).square().sum(-1)


def _std(value: Tensor) -> Tensor:
    return ((value - value.mean(0)).square().mean(0) + 1e-3).sqrt()


def _normed(g: Given, value: Tensor) -> Tensor:
    return (value - value.mean(0)) / _std(value)


def _contrast(one: Tensor, other: Tensor) -> Tensor:
    return F.cross_entropy(4 * F.normalize(one, dim=1) @ F.normalize(other, dim=1).T, torch.arange(len(one)))


def _siglip(g: Given) -> Tensor:
    scores = 8 * F.normalize(g.made, dim=1) @ F.normalize(g.targets, dim=1).T - 6
    return -F.logsigmoid(scores * (2 * torch.eye(len(g.made)).to(scores) - 1)).sum() / len(g.made)


def _whitened(g: Given) -> Tensor:
    """Barlow twins."""
    one, other = _normed(g, g.made), _normed(g, g.targets + g.made)
    return (one.T @ other / len(one) - torch.eye(one.shape[1]).to(one)).square().sum()


def _variance(g: Given) -> Tensor:
    return _error(g).mean() + g.a * F.relu(1 - _std(g.made)).mean()


def _experts(g: Given) -> Tensor:
    chosen = g.before.softmax(-1)
    return (
        _error(g).mean()
        + 0.01 * g.a * (chosen.mean(0) * (chosen > chosen.mean(1, True)).to(chosen).mean(0)).sum()
    )


APART: dict[str, Objective] = {
    "mean square": lambda g: F.mse_loss(g.made, g.targets),
    "sum square": lambda g: F.mse_loss(g.made, g.targets, reduction="sum") * g.a,
    "sum over a number": lambda g: F.mse_loss(g.made, g.targets, reduction="sum") / 40,
    "cross entropy": lambda g: F.cross_entropy(g.made, g.labels.clamp(min=0)),
    "ignored": lambda g: F.cross_entropy(g.made, g.labels),
    "ignored, summed": lambda g: F.cross_entropy(g.made, g.labels, reduction="sum"),
    "ignored, over rows": lambda g: F.cross_entropy(g.made, g.labels, reduction="none").mean(),
    "masked": lambda g: (_error(g) * g.mask).sum() / g.mask.sum(),
    "masked, over rows": lambda g: (_error(g) * g.mask).mean(),
    "smooth": lambda g: F.smooth_l1_loss(g.made, g.targets),
    "binary": lambda g: F.binary_cross_entropy_with_logits(g.made, g.targets.sigmoid()),
    "smoothed labels": lambda g: F.cross_entropy(g.made, g.labels.clamp(min=0), label_smoothing=0.2),
    "two means": lambda g: (
        F.mse_loss(g.made, g.targets) + g.a * F.cross_entropy(g.made, g.labels.clamp(min=0))
    ),
    "kept rows": lambda g: (_each(g) * _kept(g)).sum() / _kept(g).sum(),
    "power": lambda g: g.made.abs().pow(1 + g.b).mean(),
    "focal": lambda g: ((1 - (-_each(g)).exp()).pow(2) * _each(g)).mean(),
    "distance of rows": lambda g: (g.made - g.targets).norm(dim=1).mean(),
    "triplet": lambda g: F.relu(_error(g) - g.before.square().mean(-1) + g.a).mean(),
    "log of probabilities": lambda g: F.nll_loss(F.log_softmax(g.made, -1), g.labels.clamp(min=0)),
    "by parts of a row": lambda g: g.made.view(len(g.made), 2, 3).softmax(-1).pow(2).sum((1, 2)).mean(),
}
"""Losses of which microbatches are right, if their losses count what they should."""

COUPLED: dict[str, Objective] = {
    "class weights": lambda g: F.cross_entropy(g.made, g.labels.clamp(min=0), WEIGHTS.to(g.made)),
    "contrastive": lambda g: _contrast(g.made, g.targets),
    "contrastive to itself": lambda g: _contrast(g.made, g.made + g.targets),
    "siglip": _siglip,
    "pairs": lambda g: (g.made[::2][: len(g.made) // 2] - g.made[1::2]).square().mean(),
    "all pairs": lambda g: _distances(g).mean(),
    "like pairs": lambda g: (_distances(g) * _alike(g)).sum() / _alike(g).sum().clamp(min=1),
    "top": lambda g: _error(g).topk(max(1, len(g.made) // 2))[0].mean(),
    "largest": lambda g: _error(g).max(),
    "median": lambda g: _error(g).median(),
    "quantile": lambda g: _error(g).float().quantile(0.7).to(g.made),
    "batch norm by hand": lambda g: F.mse_loss(_normed(g, g.made), g.targets),
    "softmax over rows": lambda g: (g.made.softmax(0) * g.targets).sum(),
    "logsumexp over rows": lambda g: _error(g).logsumexp(0),
    "root of a mean": lambda g: F.mse_loss(g.made, g.targets).sqrt(),
    "square of a mean": lambda g: g.made.mean().square() + g.a * _error(g).mean(),
    "log of a mean": lambda g: F.mse_loss(g.made, g.targets).log(),
    "dice": lambda g: 1 - 2 * (g.made.sigmoid() * g.targets.sigmoid()).sum() / (g.made.sigmoid().sum() + 1),
    "barlow": _whitened,
    "variance": _variance,
    "experts": _experts,
    "entropy of the mean": lambda g: -(g.made.softmax(-1).mean(0) * g.made.softmax(-1).mean(0).log()).sum(),
    "weighed by the largest": lambda g: (_error(g) / _error(g).max().detach()).mean(),
    "advantage": lambda g: (
        -(F.log_softmax(g.made, -1)[:, 0] * (g.targets[:, 0] - g.targets[:, 0].mean())).mean()
    ),
    "correlation": lambda g: -F.cosine_similarity(g.made[:, 0] - g.made[:, 0].mean(), g.targets[:, 0], dim=0),
    "ranking": lambda g: F.relu(g.a - (g.made[:, :1] - g.made[:, 1:2].T)).mean(),
    "sorted": lambda g: (g.made[:, 0].sort()[0] - g.targets[:, 0].sort()[0]).square().mean(),
    "sum over positives": lambda g: (_each(g) * (g.labels == 1)).sum() / (g.labels == 1).sum().clamp(min=1),
    "cumulated": lambda g: (g.made.cumsum(0) * g.targets).mean(),
    "neighbours": lambda g: (g.made[1:] - g.made[:-1]).square().mean(),
    "bank": lambda g: F.mse_loss(g.made - _normed(g, torch.cat([g.made, g.bank]))[: len(g.made)], g.targets),
    "sinkhorn": lambda g: (g.made.softmax(1) / g.made.softmax(1).sum(0) * _error(g)[:, None]).sum(),
}
"""Losses whose rows know each other, for most batches."""

OUTPUTS: dict[str, Callable[[Given], Any]] = {
    "as made": lambda g: g.made,
    "with one less dimension": lambda g: g.made[:, 0],
    "turned": lambda g: g.made.T,
    "several": lambda g: {"made": g.made, "before": (g.before, g.x)},
    "softmax of a row": lambda g: g.made.softmax(-1),
    "layer norm": lambda g: F.layer_norm(g.made, (6,)),
    "best of a row": lambda g: {"made": g.made, "best": g.made.argmax(-1)},
    "top of a row": lambda g: g.made.topk(3, dim=1)[0],
    "a list": lambda g: {"made": g.made, "rows": [row.detach() for row in g.made]},
    "softmax over rows": lambda g: g.made.softmax(0),
    "standardized": lambda g: _normed(g, g.made),
    "centered": lambda g: g.made - g.made.mean(0),
    "scaled by the largest": lambda g: g.made / g.made.abs().max(),
    "sorted": lambda g: g.made.sort(0)[0],
    "cumulated": lambda g: g.made.cumsum(0),
    "turned around": lambda g: g.made.flip(0),
    "rolled": lambda g: g.made.roll(1, 0),
    "alike": lambda g: g.made @ g.made.T,
    "alike, beside": lambda g: {"made": g.made, "alike": g.made @ g.made.T},
    "attention over rows": lambda g: (g.made @ g.made.T).softmax(-1) @ g.made,
    "numbered": lambda g: {"made": g.made, "number": torch.arange(len(g.made))},
    "order": lambda g: {"made": g.made, "order": g.made.argsort(0)},
    "counted": lambda g: {"made": g.made, "rows": len(g.made)},
    "mean beside": lambda g: {"made": g.made, "mean": g.made.mean()},
    "norm beside": lambda g: {"made": g.made, "norm": g.made.norm()},
    "unit rows": lambda g: F.normalize(g.made, dim=1),
    "unit columns": lambda g: F.normalize(g.made, dim=0),
    "differences": lambda g: g.made - g.made[:1],
    "gated by the mean": lambda g: g.made * g.before.mean(0).sigmoid(),
}

BESIDE: dict[str, Objective] = {
    "loss_sum": lambda g: F.mse_loss(g.made, g.targets, reduction="sum"),
    "aux_loss": lambda g: g.before.square().mean(),
    "count": lambda g: _kept(g).sum(),
    "accuracy": lambda g: (g.made.argmax(-1) == g.labels).to(g.made).mean(),
    "z_loss": lambda g: g.made.logsumexp(-1).square().mean(),
    "norm": lambda g: g.made.norm(),
    "largest_loss": lambda g: _error(g).max(),
    "spread": lambda g: _std(g.made).mean(),
}
"""Numbers beside a loss."""
