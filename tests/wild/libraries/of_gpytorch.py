"""gpytorch: Gaussian processes. Exact ones take their training inputs only, and return distributions."""

import functools
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch import distributions, kernels, likelihoods, means, mlls, variational
from torch import Tensor, nn

from wild.specimen import Batch, Specimen

_ROWS = 12


def _points() -> tuple[Tensor, Tensor]:
    x = torch.linspace(0, 1, 2 * _ROWS).view(_ROWS, 2)
    return x, torch.sin(x.sum(-1) * 3)


class _Exact(gpytorch.models.ExactGP):
    """An exact process over features that a small network makes."""

    def __init__(self, likelihood: Any, kernel: Any, deep: bool) -> None:
        super().__init__(*_points(), likelihood)
        self.features = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)) if deep else nn.Identity()
        self.mean_module, self.covar_module = means.ConstantMean(), kernel

    def forward(self, x: Tensor) -> Any:
        x = self.features(x)
        return distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _ExactLoss(nn.Module):
    """The negative marginal likelihood in training, the posterior's mean and variance in evaluation."""

    def __init__(self, kernel: Callable[[], Any], deep: bool = False) -> None:
        super().__init__()
        self.likelihood = likelihoods.GaussianLikelihood()
        self.gp = _Exact(self.likelihood, kernel(), deep)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        found = self.gp(x)
        if not self.training:
            return found.mean, found.variance
        return -mlls.ExactMarginalLogLikelihood(self.likelihood, self.gp)(found, y)


class _Variational(gpytorch.models.ApproximateGP):
    """Inducing points."""

    def __init__(self) -> None:
        points = torch.rand(6, 2)
        distribution = variational.CholeskyVariationalDistribution(6)
        super().__init__(variational.VariationalStrategy(self, points, distribution))
        self.mean_module, self.covar_module = means.LinearMean(2), kernels.ScaleKernel(kernels.MaternKernel())

    def forward(self, x: Tensor) -> Any:
        return distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _VariationalLoss(nn.Module):
    """The negative bound of the evidence."""

    def __init__(self, likelihood: Callable[[], Any], bound: Callable[..., Any]) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        self.gp, self.likelihood = _Variational(), likelihood()
        self.bound = bound
        with torch.no_grad():
            self.gp(self.features(_points()[0]))  # draws what it begins with

    def forward(self, x: Tensor, y: Tensor) -> Any:
        found = self.gp(self.features(x))
        if not self.training:
            return found.mean, found.variance
        return -self.bound(self.likelihood, self.gp, num_data=_ROWS)(found, y)


class _Layer(gpytorch.models.deep_gps.DeepGPLayer):
    """A layer of a deep process."""

    def __init__(self, inputs: int, outputs: int | None) -> None:
        batch = torch.Size([]) if outputs is None else torch.Size([outputs])
        points = torch.rand(*batch, 6, inputs)
        distribution = variational.CholeskyVariationalDistribution(6, batch_shape=batch)
        super().__init__(variational.VariationalStrategy(self, points, distribution), inputs, outputs)
        self.mean_module = means.ConstantMean(batch_shape=batch)
        self.covar_module = kernels.RBFKernel(batch_shape=batch)

    def forward(self, x: Tensor) -> Any:
        return distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _Deep(gpytorch.models.deep_gps.DeepGP):
    """Two layers, with samples between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = _Layer(2, 3), _Layer(3, None)
        with torch.no_grad():
            self(_points()[0])  # draws what it begins with

    def forward(self, x: Tensor) -> Any:
        with gpytorch.settings.num_likelihood_samples(2):
            found = self.last(self.first(x))
        return found.mean, found.variance


class _Kernel(nn.Module):
    """A network with a kernel between its rows."""

    def __init__(self, kernel: Callable[[], Any]) -> None:
        super().__init__()
        self.features, self.kernel = nn.Linear(2, 4), kernel()

    def forward(self, x: Tensor) -> Tensor:
        matrix: Tensor = self.kernel(self.features(x)).to_dense()
        return matrix


def _to_classes() -> Batch:
    x, y = _points()
    return x, (y > 0).float()


def specimens() -> list[Specimen]:
    """Exact, variational and deep processes, and kernels alone."""
    rbf = lambda: kernels.ScaleKernel(kernels.RBFKernel())  # noqa: E731
    gauss, elbo = likelihoods.GaussianLikelihood, mlls.VariationalELBO
    rows: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
        "exact, RBF": (functools.partial(_ExactLoss, rbf), _points),
        "exact, deep kernel": (functools.partial(_ExactLoss, rbf, True), _points),
        "exact, sum of kernels": (
            functools.partial(_ExactLoss, lambda: kernels.LinearKernel() + kernels.PeriodicKernel()),
            _points,
        ),
        "variational": (functools.partial(_VariationalLoss, gauss, elbo), _points),
        "variational, predictive": (
            functools.partial(_VariationalLoss, gauss, mlls.PredictiveLogLikelihood),
            _points,
        ),
        "variational, classes": (
            functools.partial(_VariationalLoss, likelihoods.BernoulliLikelihood, elbo),
            _to_classes,
        ),
        "deep": (_Deep, lambda: _points()[:1]),
        "kernel": (functools.partial(_Kernel, kernels.RBFKernel), lambda: _points()[:1]),
    }
    return [Specimen("gpytorch", name, build, inputs) for name, (build, inputs) in rows.items()]
