"""Inception-v3, the image classifier with the widest branching of the paper's three models.

Source: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for
Computer Vision", 2015 (arXiv:1512.00567): Table 1 gives the outline, Figures 5 to 7 and 10 the
blocks, Section 4 the auxiliary classifier. Where the paper leaves sizes open, or differs, this is
the model that its authors released: the channels inside the blocks, the last two convolutions of
the stem, the 5x5 convolution of block A (two 3x3 in Figure 5).

    image -> stem -> A A A -> B -> C C C C -> D -> E E -> pool -> dropout -> classifier
     299             35x35        17x17             8x8           (auxiliary after the last C)
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Kernel = int | tuple[int, int]
# Channels as the paper has them -> channels of this model; how a narrow model is made.
Scale = Callable[[int], int]


class ConvUnit(nn.Module):
    """Convolution, batch normalization and an in-place ReLU.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel: side of the kernel, or (height, width); odd.
        stride: step of the kernel, in pixels.
        pad: whether to pad by half a kernel, so that stride 1 keeps the image's size.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: Kernel, stride: int = 1, pad: bool = True
    ) -> None:
        super().__init__()
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if pad else 0
        # No bias: the normalization would take it off again.
        self.conv = nn.Conv2d(in_channels, out_channels, (height, width), stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-3)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, in_channels, h, w) to features (n, out_channels, h', w')."""
        features: Tensor = self.activation(self.norm(self.conv(images)))
        return features


def _row(scale: Scale, in_channels: int, *steps: tuple[int, Kernel]) -> nn.Sequential:
    """Units in a row that keep the image's size; a step is (channels before scaling, kernel)."""
    widths = [in_channels, *(scale(channels) for channels, _ in steps)]
    return nn.Sequential(*(ConvUnit(widths[i], widths[i + 1], kernel) for i, (_, kernel) in enumerate(steps)))


def _halving(in_channels: int, out_channels: int) -> ConvUnit:
    """The 3x3 unit of stride 2 that ends a branch of a reduction block."""
    return ConvUnit(in_channels, out_channels, 3, stride=2, pad=False)


def _pooled(scale: Scale, in_channels: int, channels: int) -> nn.Sequential:
    """The branch of blocks A, C and E that averages before its 1x1 unit."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), ConvUnit(in_channels, scale(channels), 1))


class BlockA(nn.Module):
    """Four branches on the 35x35 grid (Figure 5).

    Args:
        scale: gives this model's channels for the paper's.
        in_channels: channels of the input.
        pool_channels: channels of the pooled branch, before scaling.
    """

    def __init__(self, scale: Scale, in_channels: int, pool_channels: int) -> None:
        super().__init__()
        self.point = _row(scale, in_channels, (64, 1))
        self.five = _row(scale, in_channels, (48, 1), (64, 5))
        self.three = _row(scale, in_channels, (64, 1), (96, 3), (96, 3))
        self.pooled = _pooled(scale, in_channels, pool_channels)
        self.out_channels = 2 * scale(64) + scale(96) + scale(pool_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, h, w) to (n, out_channels, h, w)."""
        return torch.cat([self.point(x), self.five(x), self.three(x), self.pooled(x)], dim=1)


class BlockB(nn.Module):
    """The first reduction: halves the grid's side, 35 to 17 (Figure 10).

    Args:
        scale: gives this model's channels for the paper's.
        in_channels: channels of the input.
    """

    def __init__(self, scale: Scale, in_channels: int) -> None:
        super().__init__()
        self.three = _halving(in_channels, scale(384))
        self.deep = nn.Sequential(_row(scale, in_channels, (64, 1), (96, 3)), _halving(scale(96), scale(96)))
        self.pool = nn.MaxPool2d(3, stride=2)
        self.out_channels = scale(384) + scale(96) + in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, h, w) to (n, out_channels, (h - 1) // 2, (w - 1) // 2)."""
        return torch.cat([self.three(x), self.deep(x), self.pool(x)], dim=1)


class BlockC(nn.Module):
    """Four branches on the 17x17 grid, 7x7 kernels as pairs of 1x7 and 7x1 (Figure 6).

    Args:
        scale: gives this model's channels for the paper's.
        in_channels: channels of the input.
        inner: channels between the two kernels of a pair, before scaling.
    """

    def __init__(self, scale: Scale, in_channels: int, inner: int) -> None:
        super().__init__()
        pair = ((inner, (7, 1)), (inner, (1, 7)))
        self.point = _row(scale, in_channels, (192, 1))
        self.seven = _row(scale, in_channels, (inner, 1), (inner, (1, 7)), (192, (7, 1)))
        self.deep = _row(scale, in_channels, (inner, 1), *pair, (inner, (7, 1)), (192, (1, 7)))
        self.pooled = _pooled(scale, in_channels, 192)
        self.out_channels = 4 * scale(192)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, h, w) to (n, out_channels, h, w)."""
        return torch.cat([self.point(x), self.seven(x), self.deep(x), self.pooled(x)], dim=1)


class BlockD(nn.Module):
    """The second reduction: halves the grid's side, 17 to 8 (Figure 10).

    Args:
        scale: gives this model's channels for the paper's.
        in_channels: channels of the input.
    """

    def __init__(self, scale: Scale, in_channels: int) -> None:
        super().__init__()
        seven = _row(scale, in_channels, (192, 1), (192, (1, 7)), (192, (7, 1)))
        self.three = nn.Sequential(_row(scale, in_channels, (192, 1)), _halving(scale(192), scale(320)))
        self.seven = nn.Sequential(seven, _halving(scale(192), scale(192)))
        self.pool = nn.MaxPool2d(3, stride=2)
        self.out_channels = scale(320) + scale(192) + in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, h, w) to (n, out_channels, (h - 1) // 2, (w - 1) // 2)."""
        return torch.cat([self.three(x), self.seven(x), self.pool(x)], dim=1)


class BlockE(nn.Module):
    """Four branches on the 8x8 grid, two of which fork again into 1x3 and 3x1 (Figure 7).

    Args:
        scale: gives this model's channels for the paper's.
        in_channels: channels of the input.
    """

    def __init__(self, scale: Scale, in_channels: int) -> None:
        super().__init__()
        fork = scale(384)
        self.point = _row(scale, in_channels, (320, 1))
        self.middle = _row(scale, in_channels, (384, 1))
        self.middle_wide = ConvUnit(fork, fork, (1, 3))
        self.middle_tall = ConvUnit(fork, fork, (3, 1))
        self.deep = _row(scale, in_channels, (448, 1), (384, 3))
        self.deep_wide = ConvUnit(fork, fork, (1, 3))
        self.deep_tall = ConvUnit(fork, fork, (3, 1))
        self.pooled = _pooled(scale, in_channels, 192)
        self.out_channels = scale(320) + 4 * fork + scale(192)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, h, w) to (n, out_channels, h, w)."""
        middle = self.middle(x)
        deep = self.deep(x)
        middle = torch.cat([self.middle_wide(middle), self.middle_tall(middle)], dim=1)
        deep = torch.cat([self.deep_wide(deep), self.deep_tall(deep)], dim=1)
        return torch.cat([self.point(x), middle, deep, self.pooled(x)], dim=1)


class AuxiliaryHead(nn.Module):
    """The side classifier on the 17x17 grid, which regularizes training (Section 4).

    Args:
        scale: gives this model's channels for the paper's.
        in_channels: channels of the input.
        classes: how many classes to tell apart.
    """

    def __init__(self, scale: Scale, in_channels: int, classes: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, stride=3)
        self.point = ConvUnit(in_channels, scale(128), 1)
        self.five = ConvUnit(scale(128), scale(768), 5, pad=False)
        self.classifier = nn.Linear(scale(768), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, 17, 17) to logits (n, classes)."""
        features = self.five(self.point(self.pool(x)))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits


def _stem(scale: Scale) -> nn.Sequential:
    """The plain convolutions that take a 299x299 image to the 35x35 grid."""
    return nn.Sequential(
        ConvUnit(3, scale(32), 3, stride=2, pad=False),
        ConvUnit(scale(32), scale(32), 3, pad=False),
        ConvUnit(scale(32), scale(64), 3),
        nn.MaxPool2d(3, stride=2),
        ConvUnit(scale(64), scale(80), 1),
        ConvUnit(scale(80), scale(192), 3, pad=False),
        nn.MaxPool2d(3, stride=2),
    )


class InceptionV3(nn.Module):
    """Classify images by Inception-v3; the defaults are the paper's model.

    Args:
        classes: how many classes to tell apart.
        width: factor on all channel counts but the image's and the classes'.
        pool_channels: one block A for each; channels of its pooled branch, before scaling.
        inner_channels: one block C for each; channels inside its branches, before scaling.
        e_blocks: number of blocks E.
        dropout: probability to drop a feature before the classifier.
        auxiliary: whether to add the auxiliary classifier, whose kernel needs images of 299 pixels.
    """

    def __init__(
        self,
        classes: int = 1000,
        width: float = 1.0,
        pool_channels: Sequence[int] = (32, 64, 64),
        inner_channels: Sequence[int] = (128, 160, 160, 192),
        e_blocks: int = 2,
        dropout: float = 0.2,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()

        def scale(channels: int) -> int:
            return max(1, round(channels * width))

        self.stem = _stem(scale)
        channels = scale(192)
        self.blocks_a = nn.Sequential()
        for pooled in pool_channels:
            self.blocks_a.append(block_a := BlockA(scale, channels, pooled))
            channels = block_a.out_channels
        self.block_b = BlockB(scale, channels)
        channels = self.block_b.out_channels
        self.blocks_c = nn.Sequential()
        for inner in inner_channels:
            self.blocks_c.append(block_c := BlockC(scale, channels, inner))
            channels = block_c.out_channels
        self.auxiliary = AuxiliaryHead(scale, channels, classes) if auxiliary else None
        self.block_d = BlockD(scale, channels)
        channels = self.block_d.out_channels
        self.blocks_e = nn.Sequential()
        for _ in range(e_blocks):
            self.blocks_e.append(block_e := BlockE(scale, channels))
            channels = block_e.out_channels
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Classify a batch of images."""
        grid = self.blocks_c(self.block_b(self.blocks_a(self.stem(images))))
        features = self.pool(self.blocks_e(self.block_d(grid)))
        logits: Tensor = self.classifier(self.dropout(torch.flatten(features, 1)))
        if self.auxiliary is not None and self.training:
            return logits, self.auxiliary(grid)
        return logits
