"""A driver without a card: cards that answer, and streams whose order is proved by vector clocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.backend.real.driver import Driver
from baechi.backend.virtual.machine.streams import Access, Event, Host, Stream
from baechi.torchlib.operators.facts import facts_of, flat, writes_of

_CPU = torch.device("cpu")


@dataclass
class Card:
    """A card as the driver describes it."""

    name: str = "NVIDIA A100-SXM4-80GB"
    free_bytes: int = 70 * 10**9
    total_bytes: int = 80 * 10**9
    identity: str = ""


class FakeStream:
    """A stream of a card that is not there: knows what it comes after."""

    device = _CPU

    def __init__(self, name: str) -> None:
        self.clock = Stream(0, name)

    def record_event(self) -> Event:
        return self.clock.record()

    def wait_event(self, event: Event) -> None:
        self.clock.wait(event)

    def synchronize(self) -> None:
        pass


@dataclass
class FakeDriver(Driver):
    """Cards to discover; and the CPU as a card with streams, if it shall be one."""

    cards: list[Card] = field(default_factory=list)
    peers: bool = True
    streams: bool = False
    used: list[tuple[torch.Tensor, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.callers = FakeStream("the caller's")
        self.current = [self.callers]
        self.made: list[FakeStream] = []

    @property
    def kind(self) -> str | None:
        return "cuda" if self.cards else None

    def count(self) -> int:
        return len(self.cards)

    def name(self, index: int) -> str:
        return self.cards[index].name

    def free_bytes(self, index: int) -> int:
        return self.cards[index].free_bytes

    def total_bytes(self, index: int) -> int:
        return self.cards[index].total_bytes

    def warm_up(self, index: int) -> None:
        pass

    def can_peer(self, source: int, target: int) -> bool:
        return self.peers

    def identity(self, index: int) -> str:
        return self.cards[index].identity or self.name(index)

    def version(self) -> str:
        return "none"

    def has_streams(self, device: torch.device) -> bool:
        return self.streams

    def current_stream(self, device: torch.device) -> Any:
        return self.current[-1]

    def new_stream(self, device: torch.device) -> Any:
        self.made.append(FakeStream(f"stream {len(self.made)}"))
        return self.made[-1]

    @contextmanager
    def on(self, *streams: Any) -> Iterator[None]:
        self.current += streams
        yield
        del self.current[len(self.current) - len(streams) :]

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        assert tensor.layout == torch.strided and not tensor.is_nested, "torch's record_stream takes no other"
        self.used.append((tensor, stream))

    def synchronize(self, device: torch.device) -> None:
        pass


class Races(TorchDispatchMode):
    """Sees every operation, on the stream that is the current one, and notes what is not ordered."""

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__()
        self.driver = driver
        self.found: list[str] = []
        self.streams_seen: set[str] = set()
        self.host = Host()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        facts = facts_of(func)
        if facts.kernel:
            written = {id(t.untyped_storage()): t for t in writes_of(facts, args, kwargs or {})}
            written |= {id(t.untyped_storage()): t for t in flat((result,))}
            self._access(facts.name, flat([*args, *(kwargs or {}).values()]), written)
        return result

    def _access(self, what: str, given: list[torch.Tensor], written: dict[int, torch.Tensor]) -> None:
        stream = self.driver.current[-1].clock
        self.streams_seen.add(stream.name)
        access = Access(stream, stream.advance(self.host), what, "")
        for tensor in (*given, *written.values()):
            before = vars(tensor.untyped_storage()).setdefault("_accesses", {})
            writes = id(tensor.untyped_storage()) in written
            for kind, other in before.items():
                if not stream.knows(other) and (writes or kind == "write"):
                    self.found.append(f"{what} on {stream} and {other.what} on {other.stream}")
            before["write" if writes else stream] = access
