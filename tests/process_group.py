"""A process group of torch that ends without a deadlock."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import distributed

_kept: list[distributed.ProcessGroup] = []


@contextmanager
def process_group(meeting: Path | str, rank: int = 0, world_size: int = 1) -> Iterator[None]:
    """A gloo group while it lasts; its threads live as long as the process.

    The last `DistributedDataParallel` that goes takes its group with it, and joins the group's threads under
    the interpreter's lock. A thread that still lets go of a gradient's context needs that lock: neither ends
    (torch 2.13, without baechi one time in five). So the group is kept. A process that was made for the group
    ends by `os._exit`: a thread that asks for that lock while the interpreter ends aborts the process.

    Args:
        meeting: a file where the processes find each other.
        rank: which process this is.
        world_size: of how many.
    """
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    group = distributed.group.WORLD
    assert group is not None
    _kept.append(group)
    try:
        yield
    finally:
        distributed.destroy_process_group()
