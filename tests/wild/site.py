"""Where the packages and sources of other libraries lie, and how they come to be importable."""

import os
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch
from torch import library as torch_library

SITE = "BAECHI_WILD"
"""Environment variable: the folder that `pip install --no-deps --target` filled."""

SOURCES = "BAECHI_WILD_SOURCES"
"""Environment variable: a folder with `NAME/tests` of libraries whose testers' models are taken."""

_TORCHVISION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def missing() -> str | None:
    """Why nothing can be tried, or None."""
    folder = os.environ.get(SITE)
    if not folder:
        return f"{SITE} is not set: it names the folder with the packages to try (docs/tested-models.md)"
    if not Path(folder).is_dir():
        return f"{SITE} is {folder!r}, which is no folder (docs/tested-models.md says how to make it)"
    return None


def enter() -> None:
    """Put the folder at the end of the path, so that nothing in it hides what is installed."""
    torch_file = torch.__file__
    sys.path.append(os.environ[SITE])
    os.environ["HF_HUB_OFFLINE"] = "1"  # models are built from configurations: nothing is fetched
    torch.set_num_threads(1)  # the models are tiny, and bits depend on it
    _declare_torchvision()
    _stand_in_for_torchaudio()
    assert torch.__file__ == torch_file


def sources(name: str) -> Path | None:
    """The folder of a library's sources with its tests, if there is one."""
    folder = Path(os.environ.get(SOURCES, "")) / name
    return folder if os.environ.get(SOURCES) and (folder / "tests").is_dir() else None


def version(package: str) -> str:
    """The installed version of a package."""
    return metadata.version(package)


def _declare_torchvision() -> None:
    """Declare two operators that torchvision needs to be imported beside a torch of another build."""
    library = Path(os.environ[SITE]) / "torchvision" / "_C.so"
    if not library.exists():
        return
    try:
        torch.ops.load_library(str(library))
    except OSError:  # it is built for CUDA
        for name in ("nms", "qnms"):
            torch_library.define(f"torchvision::{name}", _TORCHVISION)


def _stand_in_for_torchaudio() -> None:
    """Let speechbrain be imported without torchaudio, whose wheels are for other builds of torch."""
    if find_spec("torchaudio") is None:
        for name in ("torchaudio", "torchaudio.transforms", "torchaudio.functional"):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__spec__ = ModuleSpec(name, None)
        vars(sys.modules["torchaudio"]).update(
            transforms=sys.modules["torchaudio.transforms"],
            functional=sys.modules["torchaudio.functional"],
            list_audio_backends=lambda: [],
        )
