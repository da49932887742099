"""What a person types for a model, a graph, a cluster: found, or refused in one sentence."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baechi.errors import BaechiError
from baechi.records.files import profiles_folder
from baechi.records.graph import LayerGraph

ZOO = "zoo:"


def model_of(target: str) -> tuple[Any, Any]:
    """The model and the inputs that a target stands for.

    Args:
        target: `path.py:function` or `package.module:function`, a function without arguments that
            returns `(model, inputs)`; or `zoo:NAME`, a model of the zoo, full size, on the
            `meta` device.

    Raises:
        BaechiError: there is no such thing, or it returns something else.
    """
    if target.startswith(ZOO):
        return _from_zoo(target.removeprefix(ZOO))
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise BaechiError(
            f"{target!r} is no target: write path.py:function, package.module:function, or zoo:inception-v3"
        )
    made = _function(where, name)()
    if not isinstance(made, tuple) or len(made) != 2:
        raise BaechiError(f"{target} returned {type(made).__name__}: it has to return (model, inputs)")
    return made


def graph_of(name: str) -> LayerGraph:
    """A layer graph by its file, or one that is shipped.

    Args:
        name: a file that `LayerGraph.save` wrote, the name of a shipped graph, or `zoo:NAME`.

    Raises:
        FileNotFoundError: there is none.
        RecordError: the file is malformed.
    """
    return LayerGraph.load(name.removeprefix(ZOO))


def shipped(kind: str) -> list[str]:
    """The names of the shipped records of a kind.

    Args:
        kind: `"graph"` or `"cluster"`.
    """
    return sorted([file.stem for file in (profiles_folder() / f"{kind}s").glob("*.json")])


def in_zoo(text: str) -> bool:
    """Whether a text names a model of the zoo, which can be built.

    Args:
        text: what a person typed.
    """
    from baechi.zoo import MODELS

    return text.startswith(ZOO) and text.removeprefix(ZOO) in MODELS


def _from_zoo(name: str) -> tuple[Any, Any]:
    from baechi.zoo import MODELS

    if name not in MODELS:
        raise BaechiError(
            f"no model {name!r} in the zoo: it has {', '.join(MODELS)}; "
            f"`place`, `fits` and `report` take graphs as well: {', '.join(shipped('graph'))}"
        )
    return MODELS[name]("full", device="meta")


def _function(where: str, name: str) -> Callable[[], Any]:
    """The function of that name in a file or an importable module."""
    if where.endswith(".py"):
        path = Path(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise BaechiError(f"there is no file {where}")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # classes of the file find their module
        sys.path.insert(0, str(path.parent))  # as if the file were run
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise BaechiError(f"there is no module {where!r} ({error})") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise BaechiError(f"{where} has no function {name!r}: it has {', '.join(sorted(known)) or 'none'}")
    found: Callable[[], Any] = function
    return found
