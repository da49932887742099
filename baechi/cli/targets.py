"""What a person types for a model, a graph, a cluster: found, or refused in one sentence."""

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from traceback import FrameSummary, extract_tb, format_list
from typing import Any

from baechi.errors import BaechiError, said_by
from baechi.records.files import profiles_folder
from baechi.records.graph import LayerGraph

ZOO = "zoo:"


class TargetFailed(Exception):
    """A user's module or function raised, or wanted to end the process.

    Attributes:
        frames: where, in the user's code alone, as lines of a traceback.
    """

    def __init__(self, target: str, error: BaseException) -> None:
        ended = isinstance(error, SystemExit)
        said = " ".join(said_by(error).split())
        what = f"called sys.exit({said})" if ended else f"raised {type(error).__name__}: {said}".strip(": ")
        super().__init__(f"{target} {what}")
        found = [frame for frame in extract_tb(error.__traceback__) if _is_user(frame)]
        head = ["Traceback of your code (most recent call last):"] if found else []
        self.frames = [*head, *[line.rstrip("\n") for line in format_list(found)]]


def _is_user(frame: FrameSummary) -> bool:
    paths = sysconfig.get_paths()
    others = [str(Path(__file__).parents[1]), *[paths[key] for key in ("stdlib", "purelib", "platlib")]]
    return not frame.filename.startswith(("<frozen", *[f"{other}/" for other in others]))


@contextmanager
def _failing_as(target: str) -> Iterator[None]:
    """What the user's code raises becomes `TargetFailed`, whatever it is. What it prints is no result, and
    files are written to the folder where the command began."""
    folder = os.getcwd()
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TargetFailed(target, error) from error
    finally:
        os.chdir(folder)


def model_of(target: str) -> tuple[Any, Any]:
    """The model and the inputs that a target stands for.

    Args:
        target: `path.py:function` or `package.module:function`, a function without arguments that
            returns `(model, inputs)`; or `zoo:NAME`, a model of the zoo, full size, on the
            `meta` device.

    Raises:
        BaechiError: there is no such thing, or it returns something else.
        TargetFailed: it raises.
    """
    if target.startswith(ZOO):
        return _from_zoo(target.removeprefix(ZOO))
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise BaechiError(
            f"{target!r} is no target: write path.py:function, package.module:function, or zoo:inception-v3"
        )
    function = _function(where, name)
    with _failing_as(target):
        made = function()
    if not isinstance(made, tuple) or len(made) != 2:
        raise BaechiError(f"{target} returned {type(made).__name__}: it has to return (model, inputs)")
    from torch import nn

    from baechi.records.inputs import Inputs

    if not isinstance(made[0], nn.Module):
        kinds = " and ".join([type(one).__name__ for one in made])
        raise BaechiError(
            f"{target} returned {kinds}: it has to return (model, inputs), a torch.nn.Module first"
        )
    try:
        Inputs.each_of(made[1])
    except TypeError as error:
        raise BaechiError(f"{target}: {error}") from error
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
        found_first = sys.modules.setdefault(path.stem, module)  # classes of the file find their module
        sys.path.insert(0, str(path.parent))  # as if the file were run
        try:
            with _failing_as(where):
                spec.loader.exec_module(module)
        except TargetFailed:
            if found_first is module:
                del sys.modules[path.stem]
            raise
    else:
        if not all([part.isidentifier() for part in where.split(".")]):
            raise BaechiError(f"{where!r} is no name of a module: write package.module:function")
        try:
            with _failing_as(where):
                module = importlib.import_module(where)
        except TargetFailed as error:
            if isinstance(error.__cause__, ModuleNotFoundError):
                raise BaechiError(f"there is no module {where!r} ({error.__cause__})") from error
            raise
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise BaechiError(f"{where} has no function {name!r}: it has {', '.join(sorted(known)) or 'none'}")
    found: Callable[[], Any] = function
    return found
