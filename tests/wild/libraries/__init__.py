"""The libraries: for each a list of its models, which imports nothing of it until it is called for."""

from collections.abc import Callable
from importlib import import_module

from wild.specimen import Specimen

LIBRARIES = {
    "timm": "of_timm",
    "torchvision": "of_torchvision",
    "vit-pytorch": "of_vit_pytorch",
    "x-transformers": "of_x_transformers",
    "torch_geometric": "of_torch_geometric",
    "segmentation-models-pytorch": "of_segmentation",
    "monai": "of_monai",
    "diffusers": "of_diffusers",
    "transformers": "of_transformers",
    "e3nn": "of_e3nn",
    "kornia": "of_kornia",
    "zuko": "of_zuko",
    "lightly": "of_lightly",
    "open_clip_torch": "of_open_clip",
    "speechbrain": "of_speechbrain",
    "neuraloperator": "of_neuraloperator",
    "gpytorch": "of_gpytorch",
    "torchdiffeq": "of_torchdiffeq",
    "deepctr-torch": "of_deepctr",
    "gluonts": "of_gluonts",
}
"""File by package, as pip names it."""


def specimens(library: str) -> list[Specimen]:
    """All models of a library that are tried.

    Args:
        library: the package.
    """
    make: Callable[[], list[Specimen]] = import_module(f"wild.libraries.{LIBRARIES[library]}").specimens
    return make()
