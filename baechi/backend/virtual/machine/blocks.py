"""Memory of emulated devices, storage by storage: its reads, its last write, when it may be freed."""

from typing import Protocol

from baechi.backend.virtual.machine.streams import Access, Stream
from baechi.errors import StreamRaceError


class Owner(Protocol):
    """What counts blocks.

    Attributes:
        fault: what is raised with the next operation: Python drops exceptions raised in `__del__`.
    """

    fault: BaseException | None

    def died(self, block: "Block") -> None:
        """Free a block whose last tensor died."""


class Block:
    """The memory of one storage.

    Args:
        stream: the stream that was current when it was allocated.
        size_bytes: how large it is.
        owner: counts it; its `died` is called when the last tensor in it dies.
        key: a number that no other block of the owner has.
    """

    __slots__ = ("issued_s", "key", "owner", "reads", "size_bytes", "stream", "used", "write")

    def __init__(self, stream: Stream, size_bytes: int, owner: Owner, key: int) -> None:
        self.key = key
        self.stream = stream
        self.size_bytes = size_bytes
        self.owner = owner
        # the allocator may hand out memory that earlier work on this stream still uses: other streams
        # must wait for that work before they touch the block
        self.write = Access(stream, stream.epoch, "allocation", "")
        self.reads: dict[Stream, Access] = {}
        self.used: dict[Stream, None] = {}
        self.issued_s = 0.0

    def __del__(self) -> None:
        if not hasattr(self, "owner"):  # an exception of a signal's handler came first
            return
        try:
            self.owner.died(self)
        except BaseException as error:  # of a signal's handler
            self.owner.fault = error

    def read(self, access: Access) -> None:
        """Note a read, and check it."""
        if not access.stream.knows(self.write):
            raise _race(access, "reads", self.write, "writing")
        self.reads[access.stream] = access

    def written(self, access: Access) -> None:
        """Note a write, and check it."""
        stream = access.stream
        if not stream.knows(self.write):
            raise _race(access, "writes", self.write, "writing")
        for earlier in self.reads.values():
            if not stream.knows(earlier):
                raise _race(access, "writes", earlier, "reading")
        self.write = access
        self.reads.clear()

    def use(self, stream: Stream) -> None:
        """A stream uses it: it comes back only when the stream is past that (`record_stream`)."""
        if stream is not self.stream:
            self.used[stream] = None

    def unsaid_use(self) -> Access | None:
        """A use on another stream that may not be over and was not announced with `use`."""
        for access in (self.write, *self.reads.values()):
            if not any(stream.knows(access) for stream in (self.stream, *self.used)):
                return access
        return None


def early_free(block: Block, use: Access) -> StreamRaceError:
    """What to say when a block dies too early."""
    return StreamRaceError(
        f"memory was freed for stream {block.stream.name} while {use} may still be using it: let "
        f"{block.stream.name} wait for an event recorded after it, hold the tensor until then, or tell "
        "the allocator (record_stream)"
    )


def _race(access: Access, does: str, other: Access, doing: str) -> StreamRaceError:
    return StreamRaceError(
        f"{access} {does} memory that {other} may still be {doing}: nothing orders the one after the "
        f"other. Record an event on {other.stream.name} after it and let {access.stream.name} wait for it"
    )
