"""The benches by name. A bench is a module here with a function `measure(quick=False) -> Figures`."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from benches.figures import Figures

BENCHES = {
    "ablation": "what each term of the simulator's model is worth, beside dry runs",
    "batches": "the largest batch that trains, by placer and by accelerate's map",
    "bounds": "what bounds steps of large models, the host charged",
    "distribute": "what distribute costs beside a plain forward and backward, and where it goes",
    "pipeline": "emulated steps in microbatches beside one device, the bound, and orders of the literature",
    "placers": "how good placements are, and how long placing takes",
    "runtime": "what the runtime costs the host for each layer call",
    "steps": "emulated steps beside one device, and beside a plain device map",
    "witness": "whether the host's time of whole steps is what is predicted",
    "truth": "whether predicted steps and peaks are those of an emulated run",
}


LONGER = ("pipeline",)
"""Those with a longer list: their `measure` takes `full`, `models` and `devices`, too."""


def find(
    name: str, *, full: bool = False, models: Sequence[str] = (), devices: Sequence[str] = ()
) -> Callable[..., Figures]:
    """The bench of that name.

    Args:
        name: a key of `BENCHES`.
        full: whether all of it is to be measured, which may take hours.
        models: a part of the list: these models.
        devices: a part of the list: clusters whose names begin so.

    Returns:
        A function that measures, `measure(quick=False)`.

    Raises:
        ValueError: no bench has that name (it lists what there is), or it has no longer list.
    """
    if name not in BENCHES:
        known = "".join([f"\n  {known:12}{what}" for known, what in BENCHES.items()])
        raise ValueError(f"{f'there is no bench {name!r}' if name else 'say which bench'}; there are:{known}")
    parts = {"full": full, "models": models, "devices": devices}
    given = {key: value for key, value in parts.items() if value}
    if given and name not in LONGER:
        raise ValueError(
            f"the bench {name!r} has no longer list, as {', '.join(LONGER)} has: leave out "
            f"{', '.join([f'--{key}' for key in given])}"
        )
    measure: Callable[..., Figures] = import_module(f"benches.{name}").measure
    return partial(measure, **given) if given else measure
