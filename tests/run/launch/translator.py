"""An encoder, and a decoder that need not wait for it."""

from torch import Tensor, nn


class Translator(nn.Module):
    """The code runs an encoder, then a part of a decoder that does not read it, then joins them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        for name in ("e0", "e1", "e2", "e3", "d0", "d1", "d2", "d3", "join"):
            setattr(self, name, nn.Linear(width, width))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded = self.e3(self.e2(self.e1(self.e0(source))))
        decoded = self.d3(self.d2(self.d1(self.d0(target))))
        result: Tensor = self.join(encoded + decoded)
        return result


DEVICES = {"e0": 0, "e1": 0, "d2": 0, "d3": 0, "join": 0, "d0": 1, "d1": 1, "e2": 1, "e3": 1}
EARLY_DECODER = ("e0", "d0", "e1", "d1", "e2", "d2", "e3", "d3", "join")
