"""diffusers: the models of its own testers, in their sizes, with their inputs."""

import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from wild import site
from wild.libraries import of_diffusers_by_hand
from wild.specimen import Specimen

_ASKED = {"get_init_dict", "get_dummy_inputs"}


def specimens() -> list[Specimen]:
    """One for each tester; without the sources those of our own."""
    folder = site.sources("diffusers")
    if folder is None:
        return of_diffusers_by_hand.specimens()
    sys.path.insert(0, str(folder))  # its testers are the package `tests`
    found = []
    for file in sorted((folder / "tests" / "models").glob("*/test_*.py")):
        for tester in _testers(".".join(file.relative_to(folder).with_suffix("").parts)):
            name = tester.__name__.removesuffix("TesterConfig").removesuffix("Config").removesuffix("Tests")
            found.append(Specimen("diffusers", name, functools.partial(_build, tester), _inputs_of(tester)))
    torch.use_deterministic_algorithms(False)  # importing the testers turned them on
    return found


def _testers(module_name: str) -> Iterator[Any]:
    """The classes of a file that say how a model is made and called."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # of something that is needed only to test
        return
    for tester in vars(module).values():
        if inspect.isclass(tester) and tester.__module__ == module_name and vars(tester).keys() >= _ASKED:
            yield tester


def _build(tester: Any) -> nn.Module:
    asked = tester()
    return asked.model_class(**asked.get_init_dict())


def _inputs_of(tester: Any) -> Any:
    return lambda: tester().get_dummy_inputs()
