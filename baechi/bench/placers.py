"""How good placements are, and how long placing takes: `quality` and `speed` in one run."""

from dataclasses import asdict

from baechi.bench import quality, speed
from baechi.bench.figures import Figures


def measure(*, quick: bool = False) -> Figures:
    """Run both.

    Args:
        quick: small models and graphs, to see whether it works.
    """
    steps, times = list(quality.quality(quick=quick)), speed.speed(quick=quick)
    body = {
        "quality": [asdict(row) for row in steps],
        "speed": [asdict(row) for row in times],
        "ratios": speed.ratios(times),
    }
    return Figures((quality.table(steps), speed.table(times)), body)
