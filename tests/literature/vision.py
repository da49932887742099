"""Models of images: growing concatenations, pyramids, capsules and slots that compete, latents."""

from collections import OrderedDict
from typing import Any

import torch
from architectures.base import noise
from torch import Tensor, nn
from torch.nn import functional as F


class DenseNet(nn.Module):
    """Each layer reads all that were before it; Huang et al. 2017."""

    def __init__(self, growth: int = 4, blocks: tuple[int, ...] = (3, 2), classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)
        self.blocks, self.transitions, channels = nn.ModuleList(), nn.ModuleList(), 2 * growth
        for layers in blocks:
            self.blocks.append(
                nn.ModuleList(self.layer(channels + place * growth, growth) for place in range(layers))
            )
            channels += layers * growth
            self.transitions.append(
                nn.Sequential(
                    nn.BatchNorm2d(channels),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(channels, channels // 2, 1),
                    nn.AvgPool2d(2),
                )
            )
            channels //= 2
        self.classify = nn.Linear(channels, classes)

    @staticmethod
    def layer(channels: int, growth: int) -> nn.Module:
        parts: list[nn.Module] = [
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 2 * growth, 1, bias=False),
        ]
        parts += [
            nn.BatchNorm2d(2 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False),
        ]
        return nn.Sequential(*parts)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for block, transition in zip(self.blocks, self.transitions, strict=True):
            features = [x]
            for layer in block:
                new = layer(torch.cat(features, dim=1))
                features.append(F.dropout(new, 0.1, self.training))
            x = transition(torch.cat(features, dim=1))
        logits: Tensor = self.classify(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class Detector(nn.Module):
    """A feature pyramid, proposals, and heads on the best of them; Ren et al. 2015, Lin et al. 2017."""

    def __init__(self, channels: int = 6, classes: int = 3, proposals: int = 4) -> None:
        super().__init__()
        self.proposals, widths = proposals, (4, 6, 8)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU())
            for before, after in zip((3, *widths), widths, strict=False)
        )
        self.lateral = nn.ModuleDict(
            {f"p{n}": nn.Conv2d(width, channels, 1) for n, width in enumerate(widths)}
        )
        self.smooth = nn.ModuleDict({f"p{n}": nn.Conv2d(channels, channels, 3, padding=1) for n in range(3)})
        self.propose = nn.Conv2d(channels, 5, 1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(channels * 4, 8), nn.ReLU())
        self.classify, self.refine = nn.Linear(8, classes), nn.Linear(8, 4)

    def forward(self, images: list[Tensor]) -> dict[str, Any]:
        pyramid = self.pyramid(torch.stack(images))
        found = [self.boxes(level) for level in pyramid.values()]
        boxes, scores = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        best = scores.topk(self.proposals, dim=1)
        kept = boxes.detach().gather(1, best.indices[..., None].expand(-1, -1, 4))
        rows, detections = [], []
        for image, corners in enumerate(kept):
            rows.append(self.head(self.align(pyramid["p0"][image], corners)))
            classes = self.classify(rows[-1])
            sure = classes.softmax(-1).amax(-1) > 0.34
            detections.append({"boxes": (corners + self.refine(rows[-1]))[sure], "classes": classes})
        return {"proposals": best.values.sigmoid(), "detections": detections, "heads": tuple(rows)}

    def pyramid(self, x: Tensor) -> "OrderedDict[str, Tensor]":
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        levels: OrderedDict[str, Tensor] = OrderedDict()
        above: Tensor | None = None
        for number in reversed(range(len(features))):
            here = self.lateral[f"p{number}"](features[number])
            if above is not None:
                here = here + F.interpolate(above, size=here.shape[-2:], mode="nearest")
            levels[f"p{number}"] = self.smooth[f"p{number}"](above := here)
        return levels

    def boxes(self, level: Tensor) -> tuple[Tensor, Tensor]:
        size = level.shape[-2:]
        steps = [(torch.arange(n, device=level.device, dtype=level.dtype) + 0.5) / n * 2 - 1 for n in size]
        centres = torch.stack(torch.meshgrid(*steps, indexing="ij"), dim=-1).view(1, -1, 2)
        score, place, extent = self.propose(level).flatten(2).transpose(1, 2).split([1, 2, 2], dim=-1)
        middle, half = centres + 0.2 * torch.tanh(place), torch.sigmoid(extent) / 2
        return torch.cat([middle - half, middle + half], dim=-1), score.squeeze(-1)

    @staticmethod
    def align(features: Tensor, corners: Tensor) -> Tensor:
        """Two by two samples of each box."""
        low, high = corners[:, None, None, :2], corners[:, None, None, 2:]
        unit = torch.tensor([0.25, 0.75], device=features.device, dtype=features.dtype)
        grid = torch.stack(torch.meshgrid(unit, unit, indexing="ij"), dim=-1)
        places = (low + (high - low) * grid).flip(-1)
        return F.grid_sample(features.expand(len(corners), -1, -1, -1), places, align_corners=False)


class Capsules(nn.Module):
    """Parts vote for wholes, and votes that agree count more; Sabour, Frosst and Hinton 2017."""

    def __init__(self, wholes: int = 3, size: int = 4, rounds: int = 3) -> None:
        super().__init__()
        self.rounds, self.size = rounds, size
        self.features, self.parts = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 3 * size, 3, stride=2)
        self.votes = nn.Parameter(0.3 * torch.randn(wholes, 12, 5, size))
        self.rebuild = nn.Sequential(
            nn.Linear(wholes * 5, 16), nn.ReLU(inplace=True), nn.Linear(16, 49), nn.Sigmoid()
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.parts(F.relu(self.features(image))).unflatten(1, (-1, self.size))
        parts = self.squash(parts.flatten(3).permute(0, 1, 3, 2).flatten(1, 2))
        votes = torch.einsum("wpij,bpj->bwpi", self.votes, parts)
        agreed, frozen = votes.new_zeros(votes.shape[:3]), votes.detach()
        for number in range(self.rounds):
            shares = agreed.softmax(dim=1)[..., None]
            if number == self.rounds - 1:
                wholes = self.squash((shares * votes).sum(2))
            else:
                guess = self.squash((shares * frozen).sum(2))
                agreed += (frozen * guess[:, :, None]).sum(-1)
        lengths = wholes.norm(dim=-1)
        chosen = F.one_hot(lengths.argmax(dim=-1), wholes.shape[1]).to(wholes.dtype)
        return lengths, self.rebuild((wholes * chosen[..., None]).flatten(1)).unflatten(1, (7, 7))

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return x * square / (1 + square) / (square + 1e-8).sqrt()


class SlotAttention(nn.Module):
    """Slots, drawn at random, compete for the places of an image; Locatello et al. 2020."""

    def __init__(self, width: int = 6, slots: int = 3, rounds: int = 3) -> None:
        super().__init__()
        self.slots, self.rounds, self.scale = slots, rounds, width**-0.5
        self.mean, self.log_scale = (nn.Parameter(0.1 * torch.randn(1, 1, width)) for _ in range(2))
        self.see, self.place = nn.Conv2d(3, width, 3, padding=1), nn.Linear(4, width)
        self.key, self.value, self.query = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.update = nn.GRUCell(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 12), nn.ReLU(), nn.Linear(12, width))
        self.decode = nn.Linear(width, 4)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        size = image.shape[-2:]
        steps = [torch.linspace(0, 1, n, device=image.device, dtype=image.dtype) for n in size]
        grid = torch.stack(torch.meshgrid(*steps, indexing="ij"), dim=-1)
        places = self.place(torch.cat([grid, 1 - grid], dim=-1)).flatten(0, 1)
        inputs = self.norms[0](self.see(image).flatten(2).transpose(1, 2) + places)
        key, value = self.key(inputs), self.value(inputs)
        slots = self.mean.expand(len(image), self.slots, -1)
        slots = slots + self.log_scale.exp() * torch.randn_like(slots)
        for _ in range(self.rounds):
            query = self.query(self.norms[1](slots)) * self.scale
            shares = torch.softmax(key @ query.transpose(1, 2), dim=-1) + 1e-8
            news = (shares / shares.sum(dim=1, keepdim=True)).transpose(1, 2) @ value
            slots = self.update(news.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
            slots = slots + self.mlp(self.norms[2](slots))
        colours, masks = self.decode(slots[:, :, None] + places).split([3, 1], dim=-1)
        whole = (colours * masks.softmax(dim=1)).sum(1)
        return whole.transpose(1, 2).unflatten(2, size), slots


class Perceiver(nn.Module):
    """A few learned latents read any number of inputs, and queries read the latents; Jaegle et al. 2021."""

    def __init__(self, width: int = 8, latents: int = 3, depth: int = 2) -> None:
        super().__init__()
        self.latents, self.queries = (nn.Parameter(torch.randn(n, width)) for n in (latents, 2))
        self.embed = nn.Linear(3, width)
        self.read, self.answer = (nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.think = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 4)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.embed(image.flatten(2).transpose(1, 2))
        latents = self.latents.expand(len(image), -1, -1)
        for _ in range(2):  # the same weights twice
            read, shares = self.read(latents, inputs, inputs)
            latents = latents + read
            for layer in self.think:
                latents = layer(latents)
        answers, _ = self.answer(
            self.queries.expand(len(image), -1, -1), latents, latents, need_weights=False
        )
        return self.out(answers), shares


def photo() -> dict[str, Any]:
    return {"image": noise(2, 3, 8, 8)}


def photos() -> dict[str, Any]:
    return {"images": [noise(3, 16, 16), noise(3, 16, 16, seed=2)]}


def digit() -> dict[str, Any]:
    return {"image": noise(2, 1, 7, 7)}
