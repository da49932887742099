"""Records as JSON files: one envelope with a kind and a schema number, sorted and diffable.

A file is read with limits, so that none does harm. It is written beside the old one, so that there is always
one that is whole.
"""

import errno
import json
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from baechi.errors import RecordError
from baechi.records.schema import LONGEST, shown

SCHEMA = 1

MOST_BYTES = 2**28
"""A larger file is not read."""

DEEPEST = 32
"""Data that is nested deeper is not read."""

_PACKAGE = Path(__file__).resolve().parents[1]


def pack(kind: str, body: dict[str, Any]) -> str:
    """Write a record's body as JSON text."""
    return json.dumps({"baechi": kind, "schema": SCHEMA, **body}, indent=1) + "\n"


def unpack(kind: str, text: str, source: str = "text") -> dict[str, Any]:
    """Read a record's body from JSON text."""
    body = parsed(text, source)
    found = body.get("baechi") if isinstance(body, dict) else None
    if found != kind:
        raise RecordError(f"{source} holds no baechi {kind} (found: {shown(found)})")
    if body.get("schema") != SCHEMA or isinstance(body["schema"], bool):
        raise RecordError(
            f"{source} has schema {shown(body.get('schema'))}, this version reads {SCHEMA}: write it anew"
        )
    return dict(body)


def read(kind: str, path: str | Path) -> dict[str, Any]:
    """Read a record's body from a file; see `unpack`."""
    return unpack(kind, text_of(path, f"baechi {kind}"), str(path))


def parsed(text: str, source: str) -> Any:
    """Data of JSON text, if it is neither too deep nor says anything twice."""
    if len(text) > MOST_BYTES:
        raise RecordError(f"{source} has {len(text):,} characters: at most {MOST_BYTES:,} are read")
    try:
        data = json.loads(text, object_pairs_hook=_Pairs.of)
    except json.JSONDecodeError as error:
        raise RecordError(f"{source} is no JSON ({error}): is the file cut short?") from error
    except RecursionError as error:
        raise RecordError(f"{source} is nested more than {DEEPEST} deep") from error
    except ValueError as error:
        raise RecordError(f"{source} has a number of too many digits") from error
    except MemoryError as error:
        raise RecordError(f"{source} is too large for this machine's memory") from error
    level = [_Place(None, "", data)] if isinstance(data, (dict, list)) else []
    for _ in range(DEEPEST):
        for place in level:
            if isinstance(place.data, _Pairs):
                where, key = str(place).removeprefix(".") or "it", shown(place.data.twice)
                raise RecordError(f"{source} is malformed: {where} has the key {key} twice")
        level = [_Place(place, key, below) for place in level for key, below in _inside(place.data)]
    if level:
        raise RecordError(f"{source} is nested more than {DEEPEST} deep")
    return data


class _Place(NamedTuple):
    """An object or a list of JSON, under which key, and within which other one."""

    within: "_Place | None"
    key: str | int
    data: Any

    def __str__(self) -> str:
        if self.within is None:
            return ""
        if isinstance(self.key, int):
            return f"{self.within}[{self.key}]"
        return f"{self.within}.{self.key if len(self.key) <= LONGEST else shown(self.key)}"


class _Pairs(dict[str, Any]):
    """An object of JSON that has a key twice."""

    twice: str

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object of JSON."""
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter([key for key, _ in pairs])
            made = cls(made)
            made.twice = next(key for key, count in counts.items() if count > 1)
        return made


def _inside(data: Any) -> Iterator[tuple[str | int, Any]]:
    """The objects and lists in one."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    return ((key, one) for key, one in items if isinstance(one, (dict, list)))


def text_of(path: str | Path, what: str) -> str:
    """The text of a regular file; nothing else is waited for, and no more is read than `MOST_BYTES`."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            found_kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no regular file"
            raise RecordError(f"{path} is {found_kind}, so it holds no {what}")
        with os.fdopen(number, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1) if found.st_size <= MOST_BYTES else b""
        if max(len(data), found.st_size) > MOST_BYTES:
            raise RecordError(f"{path} has more than {MOST_BYTES:,} bytes: so many are read at most")
    finally:
        os.close(number)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is no text, so it holds no {what}") from error


def check_output(path: str | Path) -> None:
    """Raise if a file cannot be written, before minutes of work end there."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory, not a file to write", str(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, "is a link that leads in a circle: remove it", str(path))
    written = _is_written(path)
    if not written and not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such file or directory: its folder is not there", str(path))
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "permission denied: it cannot be written", str(path))
    if not written and not os.access(target.parent, os.W_OK):
        denied = f"permission denied: the new file has to be made in {target.parent}, which cannot be written"
        raise PermissionError(errno.EACCES, denied, str(path))


def _is_written(path: str | Path) -> bool:
    """Whether a file is written, since it is no regular one, or open already; else it is replaced."""
    special = os.path.exists(path) and not os.path.isfile(path)
    return special or str(path).startswith(_OF_SYSTEM)


def write(path: str | Path, text: str) -> None:
    """Write a file so that the old one stays, whole, until the new one is there, whole.

    The text goes into a file beside, onto the disk, and then in the place of the old one, whose permissions
    it has. A link stays, and what it leads to is replaced. What is no file (`/dev/stdout`) is written.
    """
    check_output(path)
    data = text.encode()
    try:
        old = os.stat(path) if os.path.exists(path) else None
        if _is_written(path):
            flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)  # it may be `>> log`
            with os.fdopen(os.open(path, flags), "wb") as file:
                os.set_blocking(file.fileno(), True)  # it opened: somebody reads if it is a pipe
                file.write(data)
            return
        _replace(Path(os.path.realpath(path)), data, old)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


_OF_SYSTEM = ("/dev/std", "/dev/fd/", "/proc/")


def _replace(target: Path, data: bytes, old: os.stat_result | None) -> None:
    folder = os.open(target.parent, os.O_RDONLY)
    beside = target.with_name(f".baechi-{secrets.token_hex(8)}")
    try:
        number, has_name = _new(target.parent, beside)
        try:
            if old is not None:
                os.fchmod(number, stat.S_IMODE(old.st_mode))
                with suppress(PermissionError):
                    os.fchown(number, old.st_uid, old.st_gid)
            left = memoryview(data)
            while left:
                left = left[os.write(number, left) :]
            os.fsync(number)
            if not has_name:
                os.link(f"/proc/self/fd/{number}", beside.name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(number)
        os.replace(beside, target)
        with suppress(OSError):  # not every file system writes a folder out
            os.fsync(folder)
    finally:
        os.close(folder)
        beside.unlink(missing_ok=True)


def _new(folder: Path, beside: Path) -> tuple[int, bool]:
    """A new file, open, and whether it has a name; without one it goes with a process that is killed."""
    if hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").exists():
        with suppress(OSError):  # not every file system can
            return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666), False
    return os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), True


def holds(kind: str, path: str | Path) -> bool:
    """Whether a file begins as a record of a kind does, however it is spaced."""
    if not Path(path).is_file():
        return False
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        return re.search(rf'"baechi"\s*:\s*"{kind}"', file.read(_HEAD)) is not None


_HEAD = 100
"""Characters within which a record says what it is."""

_HINTS = {"cluster": "; devices are listed as in '2xA100-80GB' or '1xRTX-4090,1xRTX-3090'"}


def find(kind: str, name_or_path: str | Path) -> Path:
    """The file that is meant by a path, or by the name of a shipped record."""
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
