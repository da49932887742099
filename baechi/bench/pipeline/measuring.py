"""What `baechi bench pipeline` measures: emulated steps, and in full also predicted ones."""

from dataclasses import asdict

from baechi.bench.figures import Figures
from baechi.bench.pipeline import emulated, simulated


def measure(*, quick: bool = False, full: bool = False) -> Figures:
    """Run, and show.

    Args:
        quick: two small models on two devices.
        full: all clusters and numbers of microbatches, which takes hours; and predictions without a search.
    """
    ran = list(emulated.emulated(quick=quick, full=full))
    body = {"emulated": [asdict(row) for row in ran]}
    if not full:
        return Figures((emulated.table(ran),), body)
    predicted = list(simulated.simulated(quick=quick))
    body["simulated"] = [asdict(row) for row in predicted]
    return Figures((emulated.table(ran), simulated.table(predicted)), body)
