"""Tries a library's models one after another, each with a time limit, and keeps what came out."""

import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wild.verdict import Kind
from wild.worker import serve

_START_S = 300.0
"""How long a library may take to be imported."""


class Worker:
    """A process that tries models.

    Args:
        library: the package.
        command: what is tried, see `TRIALS`.
    """

    def __init__(self, library: str, command: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, far_end = context.Pipe()
        self.process = context.Process(target=serve, args=(library, command, far_end), daemon=True)
        self.process.start()
        far_end.close()
        if not self.channel.poll(_START_S):
            self.kill()
            raise TimeoutError(f"{library} takes more than {_START_S:.0f} s to import")
        self.version, self.names = self.channel.recv()[1]

    def attempt(self, name: str, limit_s: float) -> tuple[dict[str, Any] | None, Kind, str]:
        """Try a model.

        Args:
            name: the model's.
            limit_s: how long it may take.

        Returns:
            Its record; or None, and what went wrong at which stage. Then this worker is dead.
        """
        self.channel.send(name)
        stage, end_s = "the start", time.monotonic() + limit_s
        while self.channel.poll(max(0.0, end_s - time.monotonic())):
            try:
                tag, value = self.channel.recv()
            except EOFError:
                self.process.join()
                return None, Kind.ERROR, f"the process ended with {self.process.exitcode} at: {stage}"
            if tag == "record":
                return value, Kind.SAME, ""
            stage = value
        self.kill()
        return None, Kind.SLOW, f"more than {limit_s:.0f} s, at: {stage}"

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.channel.close()

    def stop(self) -> None:
        """Let the process end by itself."""
        self.channel.send(None)
        self.process.join()


def try_library(
    library: str,
    out: Path,
    limit_s: float,
    only: set[str] | None = None,
    *,
    command: str = "run",
    part: slice = slice(None),
) -> Iterator[dict[str, Any]]:
    """Try all models of a library that the file has no record of.

    Args:
        library: the package.
        out: JSON lines, one a model; what is in it is not tried again.
        limit_s: how long one model may take.
        only: names of models; all unless given.
        command: what is tried, see `TRIALS`.
        part: which of the models.

    Yields:
        Each new record.
    """
    done = {record["name"] for record in read(out) if record["library"] == library}
    worker = Worker(library, command)
    version, names = worker.version, worker.names
    for name in names[part]:
        if name in done or (only is not None and name not in only):
            continue
        record, kind, note = worker.attempt(name, limit_s)
        if record is None:
            record = {"library": library, "name": name, "version": version, "verdicts": {"all": [kind, note]}}
            worker = Worker(library, command)
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        yield record
    worker.stop()


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file, none if there is no such file.

    Args:
        path: JSON lines.
    """
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def outcome(record: dict[str, Any]) -> tuple[Kind, str, str]:
    """The worst verdict of a record: its kind, the way, and the note.

    That the plain model does not run in one mode counts only if it runs in none.

    Args:
        record: as it is kept.
    """
    ranks = list(Kind)
    verdicts = [(way, Kind(kind), note) for way, (kind, note) in record["verdicts"].items()]
    ran = [row for row in verdicts if row[1] is not Kind.PLAIN_FAILS]
    way, kind, note = max(ran or verdicts, key=lambda row: ranks.index(row[1]))
    return kind, way, note
