"""An image in tiles: the halo is worked out, and there is no seam."""

import torch
from torch import nn

import baechi


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1),
    ).eval()  # fmt: skip
    image = torch.rand(1, 3, 320, 240)
    with torch.no_grad():
        whole = model(image)
        found = baechi.dispatch(model, baechi.RoundRobin(2), chunks=baechi.HaloTiles(96), workers="thread")(
            image
        )
        narrow = baechi.dispatch(model, chunks=baechi.HaloTiles(96, halo=2))(image)
    largest = whole.abs().max()
    print("within rounding:", bool((found - whole).abs().max() <= 1e-6 * largest))
    print("with a halo of 2, a seam:", bool((narrow - whole).abs().max() > 1e-2 * largest))

    refused = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8))
    try:
        baechi.dispatch(refused, chunks=baechi.HaloTiles(96))(image)
    except baechi.FatalError as error:
        print("refused:", str(error).split(";")[0])


if __name__ == "__main__":
    main()
