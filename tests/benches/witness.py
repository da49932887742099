"""Whether the host's time is predicted: whole steps on this machine beside what `HostCosts` says of them.

Tiny twins of twelve models, each in five ways, on emulated devices outside of `with cluster:`: processor
time, so it is Python, autograd and the runtime, without what a driver takes to launch. Six of the models
calibrate the costs; the other six have no say in them. All ways take turns, and an empty loop with them,
so that other work on the machine hits all alike; the fastest turns count.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec

from rich.table import Table

from baechi.measure.fit import fitted
from baechi.measure.in_turn import LOOP, quiet, timed
from baechi.measure.twins import (
    BLOCKS,
    PICTURES,
    SENTENCES,
    VOCABULARY,
    Twin,
    of_transformers,
    pictures,
    small_twins,
    twins,
    words,
)
from baechi.records.device import HostCosts
from benches.figures import Figures, table_of
from benches.modes import DEVICES, MODES, way_of

AIMS = (0.15, 0.30)
"""Nine of ten rows are predicted within the first, all within the second."""


@dataclass(frozen=True)
class Row:
    """A model in a mode.

    Args:
        model: its name.
        mode: how it runs.
        calibrates: whether the costs are fitted to it, too.
        measured_s: processor time of a step.
        predicted_s: what the costs say.
    """

    model: str
    mode: str
    calibrates: bool
    measured_s: float
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s


def measure(*, quick: bool = False) -> Figures:
    """Calibrate, predict, and show.

    Args:
        quick: one model to calibrate and one to predict, one round.
    """
    costs, rows, loop_s = witnessed(quick=quick)
    data = {"rows": [asdict(row) for row in rows], "costs": asdict(costs), "loop_s": loop_s}
    return Figures((table(rows, loop_s),), data)


def others() -> list[Twin]:
    """Models that do not calibrate; none where transformers is not installed."""
    if find_spec("transformers") is None:
        return []
    sentences, whole = partial(words, labels=False), {**VOCABULARY, **BLOCKS, "max_position_embeddings": 16}
    distil = {"dim": 16, "n_layers": 4, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 16}
    return [
        of_transformers(
            "distilbert", "DistilBertForSequenceClassification", sentences, vocab_size=100, **distil
        ),
        of_transformers("gpt-neox", "GPTNeoXForCausalLM", words, **whole),
        of_transformers("qwen2", "Qwen2ForCausalLM", words, **SENTENCES, num_key_value_heads=1),
        of_transformers("dinov2", "Dinov2ForImageClassification", partial(pictures, 8), **PICTURES),
        of_transformers(
            "albert", "AlbertForSequenceClassification", sentences, **SENTENCES, embedding_size=16
        ),
        of_transformers("phi", "PhiForCausalLM", words, **SENTENCES),
    ]


def witnessed(*, quick: bool = False) -> tuple[HostCosts, list[Row], float]:
    """Calibrate by some models, and predict all.

    Args:
        quick: few models, and one round.

    Returns:
        The costs, the rows, and seconds of the empty loop.
    """
    known = small_twins()[:1] if quick else twins()
    chosen = [*known, *(small_twins()[1:2] if quick else others())]
    with quiet():
        ways = [way_of(twin, mode) for twin in chosen for mode in MODES]
    steps, loop_s = timed(ways, 1 if quick else 10, DEVICES)
    names = {twin.name for twin in known}
    costs = fitted([step for way, step in steps if way.name in names], HostCosts.usual())
    rows = [
        Row(way.name, way.mode, way.name in names, step.taken_s, step.predicted_s(costs))
        for way, step in steps
    ]
    return costs, rows, loop_s


def table(rows: Sequence[Row], loop_s: float) -> Table:
    """Predicted over measured, by model and mode.

    Args:
        rows: what was measured.
        loop_s: seconds of the empty loop.
    """
    near, far = (sum([abs(row.ratio - 1) <= aim for row in rows]) for aim in AIMS)
    title = (
        "Host time of a step, predicted over measured, and milliseconds measured: "
        f"{near} of {len(rows)} rows within {AIMS[0]:.0%}, {far} within {AIMS[1]:.0%}; "
        f"an empty loop of {LOOP:,} takes {loop_s * 1e3:.2f} ms"
    )
    shown = table_of(title, ("model", "it"), MODES)
    for name in dict.fromkeys([row.model for row in rows]):
        own = {row.mode: row for row in rows if row.model == name}
        calibrates = next(iter(own.values())).calibrates
        cells = [f"{own[mode].ratio:.2f} of {own[mode].measured_s * 1e3:.1f}" for mode in MODES]
        shown.add_row(name, "calibrates" if calibrates else "is predicted", *cells)
    return shown
