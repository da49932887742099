"""What the runtime takes of this machine's host (`HostCosts`), beside the figures that are shipped."""

from dataclasses import asdict

from rich.table import Table

from baechi.bench.figures import Figures, table_of
from baechi.measure import host
from baechi.records.device import HostCosts


def measure(*, quick: bool = False) -> Figures:
    """Measure, and show.

    Args:
        quick: one round of small models.
    """
    costs = host(rounds=1, layers=20) if quick else host()
    return Figures((table(costs),), asdict(costs))


def table(costs: HostCosts) -> Table:
    """The figures as a table.

    Args:
        costs: what was measured.
    """
    shown = table_of("What the runtime takes of the host, in microseconds", ("each",), ("here", "as shipped"))
    usual = asdict(HostCosts.usual())
    for name, seconds in asdict(costs).items():
        what = name.removesuffix("_s").replace("_", " ")
        shown.add_row(what, f"{seconds * 1e6:.1f}", f"{usual[name] * 1e6:.1f}")
    return shown
