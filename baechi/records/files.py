"""Records as JSON files: one envelope with a kind and a schema number, sorted and diffable."""

import json
from pathlib import Path
from typing import Any

from baechi.errors import RecordError

SCHEMA = 1

_PACKAGE = Path(__file__).resolve().parents[1]


def pack(kind: str, body: dict[str, Any]) -> str:
    """Write a record's body as JSON text.

    Args:
        kind: what the record is: `"graph"`, `"cluster"`, `"plan"`, `"timeline"`.
        body: JSON-able content.

    Returns:
        Text, one item a line where it helps a diff.
    """
    return json.dumps({"baechi": kind, "schema": SCHEMA, **body}, indent=1) + "\n"


def unpack(kind: str, text: str, source: str = "text") -> dict[str, Any]:
    """Read a record's body from JSON text.

    Args:
        kind: what is expected.
        text: what `pack` wrote.
        source: where the text came from, for the error.

    Returns:
        The body.

    Raises:
        RecordError: no JSON, another kind, or a schema this version does not read.
    """
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"{source} is no JSON ({error}): is the file cut short?") from error
    found = body.get("baechi") if isinstance(body, dict) else None
    if found != kind:
        raise RecordError(f"{source} holds no baechi {kind} (found: {found!r})")
    if body.get("schema") != SCHEMA:
        raise RecordError(
            f"{source} has schema {body.get('schema')!r}, this version reads {SCHEMA}: write it anew"
        )
    return dict(body)


def read(kind: str, path: str | Path) -> dict[str, Any]:
    """Read a record's body from a file; see `unpack`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is no text, so it holds no baechi {kind}") from error
    return unpack(kind, text, str(path))


def kind_in(path: str | Path) -> str | None:
    """The kind of the record in a file; None if it holds none, or there is no such file.

    Args:
        path: of any file.
    """
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return None
    found = body.get("baechi") if isinstance(body, dict) else None
    return found if isinstance(found, str) else None


_HINTS = {"cluster": "; devices are listed as in '2xA100-80GB' or '1xRTX-4090,1xRTX-3090'"}


def find(kind: str, name_or_path: str | Path) -> Path:
    """The file that is meant by a path, or by the name of a shipped record.

    Args:
        kind: what is expected.
        name_or_path: a path, or a name in the folder of shipped records of that kind.

    Raises:
        FileNotFoundError: neither.
    """
    shipped = profiles_folder() / f"{kind}s"
    for path in (Path(name_or_path), shipped / f"{name_or_path}.json"):
        if str(name_or_path) and path.exists():
            return path
    known = ", ".join(sorted(file.stem for file in shipped.glob("*.json")))
    named = f"; shipped {kind}s are: {known}" if known else ""
    raise FileNotFoundError(f"no {kind} file {str(name_or_path)!r}{named}{_HINTS.get(kind, '')}")


def profiles_folder() -> Path:
    """The folder of shipped profiles: inside an installed package, beside it in a checkout."""
    inside = _PACKAGE / "profiles"
    return inside if inside.is_dir() else _PACKAGE.parent / "profiles"
