"""What numba has cached of the search is dropped when any of its sources has changed.

numba compares the file of a function, not those of the functions that it calls, nor of the types that it
takes. So after an upgrade it would run code of the version before, or look for modules that have moved.
"""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

NOTE = "compiled.sha256"
"""The file, beside the cache, that says of which sources it is."""


def drop_stale(sources: Path, cached: Path) -> None:
    """Delete numba's files in a folder if they are not of the sources in and below another one.

    Args:
        sources: where the compiled functions are written.
        cached: where numba keeps them: beside the sources, in the user's folder, or in `NUMBA_CACHE_DIR`.
    """
    files = sorted(sources.rglob("*.py"))
    digest = sha256(b"".join([one.read_bytes() for one in files])).hexdigest()
    note = cached / NOTE
    if note.exists() and note.read_text() == digest:
        return
    with suppress(OSError):  # nothing can be written there, so numba keeps nothing there either
        for one in cached.glob("*.nb[ic]"):
            one.unlink(missing_ok=True)
        cached.mkdir(parents=True, exist_ok=True)
        note.write_text(digest)
