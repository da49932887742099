"""One model over many inputs: the verb, and nothing that needs torch before it is called."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from baechi.dispatch.schedulers import AbstractScheduler  # the room, before the verb takes its name

if TYPE_CHECKING:
    from baechi.dispatch.chunks import AbstractChunks
    from baechi.dispatch.dispatched_model import Dispatched


def dispatch(
    model: Any,
    scheduler: AbstractScheduler | None = None,
    *,
    chunks: "AbstractChunks | None" = None,
    workers: Literal["inline", "thread", "process"] = "inline",
    out: Any = "auto",
    recoverable: Sequence[type[BaseException]] = (),
    retry: int = 0,
    timeout: float | None = None,
) -> "Dispatched":
    """Run one model over many inputs, in chunks, on one device or several unequal ones.

        d = baechi.dispatch(model, baechi.HybridScheduler(cluster, batch_sizes=[512, 4096]), workers="thread")
        y = d(x)

    Args:
        model: the model, which stays where and what it is; or, for processes, a function that makes it.
        scheduler: who gets the next chunk, and how large it is; unless given, nothing is divided and the
            model runs where it lies.
        chunks: how inputs are divided: `Rows()` unless given, or `HaloTiles(...)`.
        workers: who runs chunks: `"inline"` the calling thread; `"thread"` a thread for each target;
            `"process"` a process for each, which lives until `close()`.
        out: how the results of chunks become one: `"auto"` finds it out; else `"cat"`, `("cat", dim)`,
            `"same"`, `"sum"`, `"mean"` (weighted by rows), `"max"`, a function of the list of parts; or a
            dict or list of these, by output.
        recoverable: your own types of errors after which a call with less work may succeed.
        retry: how often a chunk that failed with such an error is tried again, in halves.
        timeout: of processes: seconds that a chunk may take.

    Returns:
        What is called as the model is; as a context manager it ends its workers.

    Raises:
        FatalError: `out` says no rule.
        ValueError: there are no such workers, or a number makes no sense.
        TypeError: it is not a model.
    """
    from baechi.dispatch.arguments import dispatched

    return dispatched(
        model,
        scheduler,
        chunks,
        workers=workers,
        out=out,
        recoverable=tuple(recoverable),
        retry=retry,
        timeout_s=timeout,
    )
