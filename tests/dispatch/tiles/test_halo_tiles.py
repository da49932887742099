"""Halo tiles equal the whole plane: bit for bit where sums are exact, else but for rounding."""

from typing import Any

import pytest
import torch
from dispatch.chunks_of import assert_close
from dispatch.tiles.convolutional import NETS, C, with_small_integers
from torch import nn

import baechi
from baechi import FatalError, HaloTiles, RoundRobin
from baechi.torchlib.tensors.pytree import tensors_in

DRAW = torch.Generator().manual_seed(3)


def plane(*shape: int) -> torch.Tensor:
    """Small integers, in double precision."""
    return torch.randint(-3, 4, shape, generator=DRAW).double()


def tiled(net: nn.Module, chunks: HaloTiles, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return baechi.dispatch(net, chunks=chunks)(*args, **kwargs)


@pytest.mark.parametrize("name", NETS)
def test_geometry_is_exact_bit_for_bit(name: str) -> None:
    """Every sum is exact here, so a pixel that differs has seen other pixels."""
    net = with_small_integers(NETS[name]())
    x = plane(2, 1, 44, 76)
    with torch.no_grad():
        found, expected = tiled(net, HaloTiles(16), x), net(x)
    for one, other in zip(tensors_in(found), tensors_in(expected), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 2e-15)])
def test_with_any_weights_only_rounding_differs(dtype: torch.dtype, bound: float) -> None:
    """Not bit for bit: a product of matrices computes columns in panels, and those left over in another way.

    A pixel is a column, so which pixels are left over depends on the size of the plane.
    """
    for build in NETS.values():
        torch.manual_seed(0)
        net = build().to(dtype).eval()
        x = torch.randn(1, 1, 44, 76, dtype=dtype)
        with torch.no_grad():
            found, expected = tiled(net, HaloTiles(16), x), net(x)
        for one, other in zip(tensors_in(found), tensors_in(expected), strict=True):
            if one.is_floating_point():
                assert float((one - other).abs().max()) <= bound * float(other.abs().max())


@pytest.mark.parametrize("arguments", [{}, {"halo": 2}, {"halo": 2, "stitch": "blend"}])
def test_models_that_draw_are_refused(arguments: dict[str, Any]) -> None:
    """Where tiles overlap, each would drop others; the halo does not have to be looked for."""
    net = nn.Sequential(C(1, 2, 3, padding=1), nn.Dropout(0.01), C(2, 1, 3, padding=1))
    chunks, x = HaloTiles(16, **arguments), torch.randn(1, 1, 40, 40)
    net.eval()
    tiled(net, chunks, x)
    net[1].train()  # the model's own flag says evaluation still
    with pytest.raises(FatalError, match=r"draws random numbers.*\.eval"):
        tiled(net, chunks, x)


def test_a_smaller_halo_would_not_do() -> None:
    """The halo that is found is the least one: with a pixel less, seams show."""
    net, x = with_small_integers(NETS["plain"]()), plane(1, 1, 40, 40)
    with torch.no_grad():
        expected = net(x)
    assert torch.equal(tiled(net, HaloTiles(16, halo=2), x), expected)
    assert not torch.equal(tiled(net, HaloTiles(16, halo=1), x), expected)


@pytest.mark.parametrize(
    ("net", "shape", "dims"),
    [
        (nn.Conv1d(2, 3, 5, padding=2), (1, 2, 90), (-1,)),
        (nn.Conv3d(1, 2, 3, padding=1), (1, 1, 12, 14, 10), (-3, -2, -1)),
        (C(1, 2, 3, padding=1), (1, 1, 40, 24), (-2,)),
    ],
)
def test_one_to_three_dimensions(net: nn.Module, shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    net, x = with_small_integers(net), plane(*shape)
    with torch.no_grad():
        assert torch.equal(tiled(net, HaloTiles(8, dims=dims), x), net(x))


class Centred(nn.Module):
    """It looks at all of the first dimension of the plane, and at nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 5 - x.sum(-2, keepdim=True)


@pytest.mark.parametrize("shape", [(1, 1, 1, 70), (1, 1, 5, 70), (0, 1, 40, 40), (1, 40, 47)])
def test_odd_planes(shape: tuple[int, ...]) -> None:
    """Thin ones are divided along the other dimension alone; empty ones, and those without a batch, too."""
    x = plane(*shape)
    nets = [with_small_integers(C(1, 2, 5, padding=2)), *([Centred()] if shape[-2] < 16 else [])]
    for net in nets:
        with torch.no_grad():
            assert torch.equal(tiled(net, HaloTiles(16), x), net(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Its kernels let NaN reach pixels that nothing else reaches, so it is no mark there."""
    torch.manual_seed(0)
    net = NETS["plain"]().to(dtype).eval()
    x = torch.randn(1, 1, 44, 60).to(dtype)
    with torch.no_grad():
        found, expected = tiled(net, HaloTiles(16), x), net(x)
    assert float((found - expected).abs().max()) <= 0.01 * float(expected.abs().max())


def test_tiles_by_two_threads_with_an_argument_that_goes_whole() -> None:
    net, x = with_small_integers(NETS["several"]()), plane(1, 1, 40, 40)
    dispatched = baechi.dispatch(net, RoundRobin(2), chunks=HaloTiles(16), workers="thread")
    with torch.no_grad():
        for one, other in zip(dispatched(x, scale=2.0).values(), net(x, scale=2.0).values(), strict=True):
            assert torch.equal(one, other)


def test_a_plane_no_larger_than_a_tile_is_one_call() -> None:
    seen: list[torch.Tensor] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return x

    x = plane(1, 1, 8, 8)
    tiled(Sees(), HaloTiles(8), x)
    assert seen[0] is x
    assert len(seen) == 1


class Coordinates(nn.Module):
    """It knows where in the plane a pixel lies."""

    def __init__(self) -> None:
        super().__init__()
        self.a = C(2, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        where = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype).expand_as(x)
        out: torch.Tensor = self.a(torch.cat([x, where], 1))
        return out


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(C(1, 2, 3, padding=1), nn.InstanceNorm2d(2)),
        nn.Sequential(C(1, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1)),
        C(1, 1, 3, padding=1, padding_mode="circular"),
        Coordinates(),
    ],
)
def test_models_that_look_at_the_whole_plane_are_refused(net: nn.Module) -> None:
    with pytest.raises(FatalError, match=r"plane|seam|tiles"):
        tiled(net.double().eval(), HaloTiles(16), plane(1, 1, 64, 64))


@pytest.mark.parametrize("halo", [0, 1, 3, 8])
def test_blended_tiles_of_what_looks_at_nothing_else_are_the_whole(halo: int) -> None:
    """Weights of a blend add up to one; a halo of one pixel does not put its seam to zero."""
    x = torch.randn(1, 2, 30, 37, dtype=torch.float64)
    assert_close(tiled(nn.Identity(), HaloTiles(8, halo=halo, stitch="blend"), x), x)


def test_a_model_that_normalizes_the_plane_can_be_blended() -> None:
    net = nn.Sequential(C(1, 2, 3, padding=1), nn.InstanceNorm2d(2)).double().eval()
    found = tiled(net, HaloTiles(32, halo=8, stitch="blend"), plane(1, 1, 64, 64))
    assert found.shape == (1, 2, 64, 64)
    assert found.isfinite().all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0},
        {"size": (8, 8, 8)},
        {"size": 8, "halo": -1},
        {"size": 8, "halo": "none"},
        {"size": 8, "stitch": "mix"},
        {"size": 8, "dims": (2, 3)},
        {"size": 8, "stride": 0},
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"size|halo|stitch|dims|stride"):
        HaloTiles(**arguments)
