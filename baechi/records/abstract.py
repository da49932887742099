"""What every record can do: be written to JSON text or a file, and read back."""

from abc import ABC
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from baechi.errors import RecordError
from baechi.records import files
from baechi.records.lazy_imports import lazy_import
from baechi.records.schema import record_form


class AbstractRecord(ABC):
    """A record with a body of JSON-able data, which is that of its fields unless it says otherwise."""

    record_kind: ClassVar[str]
    """What a file of it says that it holds."""

    def __repr__(self) -> str:
        """A few lines: what it is, without its contents."""
        return str(lazy_import("describe")(self))

    def body(self) -> dict[str, Any]:
        """The record as JSON-able data."""
        body: dict[str, Any] = record_form(type(self)).write(self)
        return body

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """The record that `body` wrote.

        Args:
            body: JSON-able data.

        Raises:
            RecordError: the record is malformed.
        """
        record: Self = record_form(cls).read(body)
        return record

    def to_json(self) -> str:
        """The record as JSON text."""
        return files.pack(self.record_kind, self.body())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Args:
            text: JSON text.

        Raises:
            RecordError: the text holds no such record, or a malformed one.
        """
        return cls._built(files.unpack(cls.record_kind, text), "the text")

    def save(self, path: str | Path) -> None:
        """Write the record to a file.

        Args:
            path: the file; one that is there stays as it was until the new one is written.

        Raises:
            OSError: it cannot be written; one that was there is as it was.
        """
        files.write(path, self.to_json())

    @classmethod
    def load(cls, name_or_path: str | Path) -> Self:
        """Read a record from a file, or a shipped one (`profiles/`) by its name.

        Args:
            name_or_path: a path, or a shipped name.

        Raises:
            FileNotFoundError: neither a file nor a shipped name.
            RecordError: the file holds no such record, or a malformed one.
        """
        path = files.find(cls.record_kind, name_or_path)
        return cls._built(files.read(cls.record_kind, path), str(path))

    @classmethod
    def _built(cls, body: Mapping[str, Any], source: str) -> Self:
        """The record of an untrusted body, for example one from a file."""
        try:
            return cls.from_body(body)
        except RecordError as error:
            whole = "whole " if error.places and not error.places[0][0] else ""  # it lacks something
            what = f"{source} is no {whole}baechi {cls.record_kind}:"
            faults = error.faults or (str(error),)
            if faults[1:]:
                raise type(error)(what, faults, error.places) from error
            single = type(error)(f"{what} {faults[0]}")
            single.faults, single.places = faults, error.places
            raise single from error
