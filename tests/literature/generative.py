"""Models that make images and scenes: they draw, sort, invert, and differentiate within forward."""

from typing import Any

import torch
from architectures.base import noise
from torch import Tensor, nn
from torch.nn import functional as F


class LadderVAE(nn.Module):
    """Two levels of latent variables, the lower one drawn given the upper one; Sonderby et al. 2016.

    The way down uses the precisions of the way up, so both meet at each level.
    """

    def __init__(self, width: int = 12, hidden: int = 10, latents: tuple[int, int] = (6, 3)) -> None:
        super().__init__()
        lower, upper = latents
        self.up1 = nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(inplace=True))
        self.up2 = nn.Sequential(
            nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(inplace=True)
        )
        self.seen1, self.seen2 = nn.Linear(hidden, 2 * lower), nn.Linear(hidden, 2 * upper)
        self.down = nn.Sequential(nn.Linear(upper, hidden), nn.ELU(), nn.Linear(hidden, 2 * lower))
        self.decoder = nn.Sequential(nn.Linear(lower, hidden), nn.ELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = self.up1(x)
        mean2, scale2 = self.gaussian(self.seen2(self.up2(first)))
        upper = mean2 + scale2 * torch.randn_like(mean2)
        expected1, expected_scale1 = self.gaussian(self.down(upper))
        found1, found_scale1 = self.gaussian(self.seen1(first))
        trust, expected_trust = found_scale1**-2, expected_scale1**-2
        mean1 = (found1 * trust + expected1 * expected_trust) / (trust + expected_trust)
        scale1 = (trust + expected_trust).rsqrt()
        lower = mean1 + scale1 * torch.randn_like(mean1)
        kl = self.kl(mean1, scale1, expected1, expected_scale1)
        kl = kl + self.kl(mean2, scale2, torch.zeros_like(mean2), torch.ones_like(scale2))
        return {"image": torch.sigmoid(self.decoder(lower)), "kl": kl}

    @staticmethod
    def gaussian(parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = parameters.chunk(2, dim=-1)
        return mean, F.softplus(scale) + 1e-3

    @staticmethod
    def kl(mean: Tensor, scale: Tensor, prior: Tensor, prior_scale: Tensor) -> Tensor:
        ratio = (scale / prior_scale) ** 2
        return 0.5 * (ratio + ((mean - prior) / prior_scale) ** 2 - 1 - ratio.log()).sum(-1)


class WassersteinGAN(nn.Module):
    """Generator and critic in one module, with the gradient penalty; Gulrajani et al. 2017.

    The penalty differentiates the critic within forward, and is itself differentiated.
    """

    def __init__(self, latent: int = 5, width: int = 8, hidden: int = 12) -> None:
        super().__init__()
        self.latent = latent
        self.generator = nn.Sequential(
            nn.Linear(latent, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, width), nn.Tanh()
        )
        self.critic = nn.Sequential(
            nn.Linear(width, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.score = nn.Linear(hidden, 1)

    def forward(self, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.randn(len(real), self.latent, device=real.device, dtype=real.dtype)
        made = self.generator(z)
        generator_loss = -self.judge(made).mean()
        critic_loss = self.judge(made.detach()).mean() - self.judge(real).mean()
        mix = torch.rand(len(real), 1, device=real.device, dtype=real.dtype)
        between = (mix * real + (1 - mix) * made.detach()).requires_grad_()
        with torch.enable_grad():
            scores = self.judge(between)
            (slope,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return generator_loss, critic_loss, 10 * penalty

    def judge(self, x: Tensor) -> Tensor:
        score: Tensor = self.score(self.critic(x))
        return score


class FlowStep(nn.Module):
    """Normalize, mix channels, shift one half by what the other says."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.shift, self.log_scale = (nn.Parameter(torch.zeros(1, channels, 1, 1)) for _ in range(2))
        self.mixing = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.register_buffer("started", torch.tensor(False))
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, hidden, 3, padding=1), nn.ReLU(), nn.Conv2d(hidden, channels, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not self.started:
            self.start(x)
        pixels = x.shape[2] * x.shape[3]
        x = (x + self.shift) * self.log_scale.exp()
        x = F.conv2d(x, self.mixing[:, :, None, None])
        kept, changed = x.chunk(2, dim=1)
        log_scale, shift = self.net(kept).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale)
        log_det = pixels * (self.log_scale.sum() + torch.linalg.slogdet(self.mixing)[1])
        return torch.cat([kept, changed * log_scale.exp() + shift], dim=1), log_det + log_scale.sum((1, 2, 3))

    @torch.no_grad()
    def start(self, x: Tensor) -> None:
        """The first batch sets shift and scale, so that channels are normalized."""
        self.shift.copy_(-x.mean((0, 2, 3), keepdim=True))
        self.log_scale.copy_(-x.std((0, 2, 3), keepdim=True).log())
        self.started.fill_(True)


class Glow(nn.Module):
    """A normalizing flow over two scales, started by its first batch; Kingma and Dhariwal 2018."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.fine = nn.ModuleList(FlowStep(4, hidden) for _ in range(2))
        self.coarse = nn.ModuleList(FlowStep(8, hidden) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        log_likelihood, latents = torch.zeros(len(x), dtype=x.dtype, device=x.device), []
        for scale in (self.fine, self.coarse):
            x = F.pixel_unshuffle(x, 2)
            for step in scale:
                x, log_det = step(x)
                log_likelihood = log_likelihood + log_det
            x, latent = x.chunk(2, dim=1)
            latents.append(latent)
        latents.append(x)
        for latent in latents:
            log_likelihood = log_likelihood - 0.5 * latent.square().sum((1, 2, 3))
        return latents, log_likelihood


class RadianceField(nn.Module):
    """Colours along rays: coarse samples say where fine ones are drawn; Mildenhall et al. 2020."""

    def __init__(self, octaves: int = 3, hidden: int = 12, samples: int = 5) -> None:
        super().__init__()
        self.samples = samples
        self.register_buffer("frequencies", 2.0 ** torch.arange(octaves) * torch.pi)
        self.coarse, self.fine = self.net(6 * octaves, hidden), self.net(6 * octaves, hidden)

    @staticmethod
    def net(width: int, hidden: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))

    def forward(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        edges = torch.linspace(1, 3, self.samples + 1, device=origins.device, dtype=origins.dtype)
        draws = torch.rand(len(origins), self.samples, device=origins.device, dtype=origins.dtype)
        depths = edges[:-1] + (edges[1:] - edges[:-1]) * draws
        colour, weights = self.render(self.coarse, origins, directions, depths)
        with torch.no_grad():
            fine = self.resample(depths, weights)
        depths, _ = torch.cat([depths, fine], dim=-1).sort(dim=-1)
        return colour, self.render(self.fine, origins, directions, depths)[0]

    def render(self, net: nn.Module, origins: Tensor, directions: Tensor, depths: Tensor) -> Any:
        points = origins[:, None] + directions[:, None] * depths[..., None]
        phases = (points[..., None] * self.frequencies).flatten(-2)
        seen = net(torch.cat([phases.sin(), phases.cos()], dim=-1))
        colours, density = torch.sigmoid(seen[..., :3]), F.softplus(seen[..., 3])
        lengths = F.pad(depths[..., 1:] - depths[..., :-1], (0, 1), value=1e3)
        opacity = 1 - torch.exp(-density * lengths)
        clear = torch.cumprod(F.pad(1 - opacity + 1e-10, (1, 0), value=1.0), dim=-1)[..., :-1]
        weights = opacity * clear
        return (weights[..., None] * colours).sum(-2), weights

    def resample(self, depths: Tensor, weights: Tensor) -> Tensor:
        """Depths drawn where the weights are."""
        share = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
        below = torch.cumsum(share, dim=-1)
        place = torch.searchsorted(below, torch.rand_like(below)).clamp(max=self.samples - 1)
        return depths.gather(-1, place) + 0.05 * torch.rand_like(depths)


def vectors() -> dict[str, Any]:
    return {"x": noise(6, 12)}


def real() -> dict[str, Any]:
    return {"real": noise(6, 8)}


def image() -> dict[str, Any]:
    return {"x": noise(2, 1, 8, 8)}


def rays() -> dict[str, Any]:
    return {"origins": noise(4, 3), "directions": F.normalize(noise(4, 3, seed=2), dim=-1)}
