"""What a person types for a model, a graph, a cluster: found, or refused in one sentence."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baechi.errors import BaechiError
from baechi.records.cluster import Cluster
from baechi.records.datasheet import equal_devices, usual_link
from baechi.records.device import Link
from baechi.records.files import profiles_folder
from baechi.records.graph import LayerGraph

ZOO = "zoo:"

_PART = re.compile(r"(\d+)x(.+)")


def model_of(target: str) -> tuple[Any, Any]:
    """The model and the example inputs that a target stands for.

    Args:
        target: `path.py:function` or `package.module:function`, a function without arguments that
            returns `(model, example_inputs)`; or `zoo:NAME`, a model of the zoo, full size, on the
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
        raise BaechiError(
            f"{target} returned {type(made).__name__}: it has to return (model, example_inputs)"
        )
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


def cluster_of(text: str) -> Cluster:
    """A cluster by its file, its shipped name, or how many of which devices it has.

    Args:
        text: a file that `Cluster.save` wrote, the name of a shipped cluster, or devices with a
            datasheet, such as `4xA100-80GB` or `1xRTX-4090,2xRTX-3090`; devices of several kinds are
            joined by the slowest of their usual links.

    Raises:
        BaechiError: none of these.
        RecordError: the file is malformed.
    """
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    try:
        if text in shipped("cluster") or not all(parts):
            return Cluster.load(text)
        return _of_kinds([(int(part[1]), part[2]) for part in parts if part])
    except ValueError as error:
        raise BaechiError(f"cluster {text!r}: {error}") from error


def shipped(kind: str) -> list[str]:
    """The names of the shipped records of a kind.

    Args:
        kind: `"graph"` or `"cluster"`.
    """
    return sorted([file.stem for file in (profiles_folder() / f"{kind}s").glob("*.json")])


def _of_kinds(kinds: list[tuple[int, str]]) -> Cluster:
    if len(kinds) == 1:
        return Cluster.uniform(kinds[0][0], like=kinds[0][1])
    devices = [device for n, kind in kinds for device in equal_devices(n, kind, None, kind)]
    links = [usual_link(kind) for _, kind in kinds]
    slowest = Link(
        latency_s=max([link.latency_s for link in links]),
        bytes_per_s=min([link.bytes_per_s for link in links]),
    )
    return Cluster(tuple(devices), link=slowest)


def _from_zoo(name: str) -> tuple[Any, Any]:
    from baechi.zoo import MODELS

    if name not in MODELS:
        raise BaechiError(
            f"no model {name!r} in the zoo: it has {', '.join(MODELS)}; "
            f"`place` and `report` take graphs as well: {', '.join(shipped('graph'))}"
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
