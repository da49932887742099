"""What `python -m benches pipeline` measures: emulated steps, and the largest batches."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from benches.figures import Figures
from benches.pipeline import batches, emulated


def measure(*, quick: bool = False, models: Sequence[str] = (), devices: Sequence[str] = ()) -> Figures:
    """Run, and show. Each row is printed to the standard error when it is there.

    Args:
        quick: a small model on two devices, without the largest batches.
        models: only these.
        devices: only clusters whose names begin with one of these, such as "4 equal".
    """
    console, ran = Console(stderr=True), list[emulated.Row]()
    for row in emulated.emulated(quick=quick, models=models, devices=devices):
        ran.append(row)
        console.print(str(row), highlight=False, soft_wrap=True)
    if not ran:
        raise ValueError(f"no cluster begins with {', '.join(devices)}")
    tables, body = [emulated.table(ran)], {"emulated": [asdict(row) for row in ran]}
    if not quick:
        fitting = list(batches.batches(models=models))
        body["batches"] = [asdict(row) for row in fitting]
        tables.append(batches.table(fitting))
    return Figures(tuple(tables), body)
