"""The benches by name. A bench is a module here with a function `measure(quick=False) -> Figures`."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from benches.figures import Figures

BENCHES = {
    "ablation": "what each term of the simulator's model is worth, beside dry runs",
    "batches": "the largest batch that trains, by placer and by accelerate's map",
    "distribute": "what distribute costs beside a plain forward and backward, and where it goes",
    "host": "what a step takes of each rank's host, beside its share of one process's tasks",
    "peers": "pipelines beside torch's own schedules, and plans beside those of other systems",
    "pipeline": "emulated steps in microbatches beside one device, the bound, and orders of the literature",
    "placers": "how good placements are, and how long placing takes",
    "programs": "what a step of compiled stages takes of the host, beside the loop and torch.compile",
    "runtime": "what the runtime costs the host for each layer call",
    "steps": "training steps beside one device and a plain device map, and what bounds them",
    "witness": "whether the host's time of whole steps is what is predicted",
    "truth": "whether predicted steps and peaks are those of an emulated run",
}


IN_PARTS = ("peers", "pipeline", "steps")
"""Those of which a part may be run: their `measure` takes `models` and `devices`, too."""


def find(name: str, *, models: Sequence[str] = (), devices: Sequence[str] = ()) -> Callable[..., Figures]:
    """The bench of that name.

    Args:
        name: a key of `BENCHES`.
        models: only models whose names begin so.
        devices: only clusters whose names begin so.

    Returns:
        A function that measures, `measure(quick=False)`.

    Raises:
        ValueError: no bench has that name (it lists what there is), or it runs as a whole only.
    """
    if name not in BENCHES:
        known = "".join([f"\n  {known:12}{what}" for known, what in BENCHES.items()])
        raise ValueError(f"{f'there is no bench {name!r}' if name else 'say which bench'}; there are:{known}")
    parts = {"models": models, "devices": devices}
    given = {key: value for key, value in parts.items() if value}
    if given and name not in IN_PARTS:
        raise ValueError(
            f"of the bench {name!r} no part can be run, as of {' and '.join(IN_PARTS)}: leave out "
            f"{', '.join([f'--{key}' for key in given])}"
        )
    measure: Callable[..., Figures] = import_module(f"benches.{name}").measure
    return partial(measure, **given) if given else measure
