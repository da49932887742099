"""What numba has cached of the search is dropped when any of its sources has changed.

numba compares the file of a function, not those of the functions that it calls, nor of the types that it
takes. So after an upgrade it would run code of the version before, or look for modules that have moved.
"""

from hashlib import sha256
from pathlib import Path

NOTE = "compiled.sha256"
"""The file, beside the cache, that says of which sources it is."""


def drop_stale(folder: Path) -> None:
    """Delete numba's files in and below a folder if they are of other sources."""
    sources = sorted(folder.rglob("*.py"))
    digest = sha256(b"".join([source.read_bytes() for source in sources])).hexdigest()
    note = folder / "__pycache__" / NOTE
    try:
        if note.exists() and note.read_text() == digest:
            return
        for cached in folder.rglob("__pycache__/*.nb[ic]"):
            cached.unlink(missing_ok=True)
        note.parent.mkdir(exist_ok=True)
        note.write_text(digest)
    except OSError:  # nothing can be written there, so numba keeps its cache elsewhere
        return
