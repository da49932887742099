"""What is known of a storage at a point of the walk over a trace."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class StorageState:
    """A storage, as far as the walk has come.

    Args:
        writer: the node that wrote it last.
        holder: the node on whose device it lies.
        made: the number of the event that wrote it last.
        readers: the nodes that read it since.
    """

    writer: str | None = None
    holder: str | None = None
    made: int = -1
    readers: list[str] = field(default_factory=list)
