"""What ranks, one process, and plain torch do with checkpoints: train, save, and go on."""

import itertools
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from run.ranks.jobs import EXACT
from run.ranks.models import built
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import baechi
from baechi.records.pipeline import Pipeline

Seen = list[tuple[float, float]]
"""By step, the loss and the norm of all gradients."""


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with two groups."""
    matrices = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others}]
    makes: dict[str, Any] = {
        "adamw": lambda: torch.optim.AdamW(groups, 0.05, weight_decay=0.0),
        "sgd": lambda: torch.optim.SGD(groups, 0.1, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(groups, 0.01, centered=True, momentum=0.5),
        "nadam": lambda: torch.optim.NAdam(groups, 0.01),
        "adafactor": lambda: torch.optim.Adafactor(groups, 0.01),
        "rprop": lambda: torch.optim.Rprop([{"params": matrices}, {"params": others}], 0.01),
    }
    made: torch.optim.Optimizer = makes[kind]()
    return made


class Loop:
    """A training loop as users write it, over ranks, in one process, or without baechi.

    Args:
        name: of the model.
        kind: of the optimizer.
        text: the pipeline; None for plain torch.
        new: whether its weights are others than those that are saved.
        meta: whether they have no memory yet.
    """

    def __init__(self, name: str, kind: str, text: str | None, *, new: bool, meta: bool = False) -> None:
        self.model, batch = built(name)
        self.data = [batch() for _ in range(4)]
        with torch.no_grad():
            for weight in itertools.chain(self.model.parameters(), self.model.buffers()) if new else ():
                weight.add_(1)
        if meta:
            self.model.to("meta")
        self.optimizer = optimizer_of(kind, self.model)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 3], 0.5)
        if text is not None:
            baechi.distribute(
                self.model,
                self.data[0],
                plan=Pipeline.from_json(text),
                optimizer=self.optimizer,
                loss_weights="rows",
                coupled="accept",
                compile=EXACT,
            )
        torch.manual_seed(7)

    def steps(self, first: int, end: int) -> Seen:
        """Some steps: losses and norms; last, an evaluation."""
        seen = []
        for inputs in self.data[first:end]:
            self.optimizer.zero_grad()
            result = self.model(**inputs)
            loss = result["loss"] if isinstance(result, dict) else result
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.scheduler.step()
            seen.append((loss.item(), norm.item()))
        return [*seen, (torch.rand(1).item(), self.optimizer.param_groups[0]["lr"])]

    @property
    def state(self) -> dict[str, Any]:
        """What `baechi.save` and `baechi.resume` take beside the folder."""
        return {"optimizer": self.optimizer, "scheduler": self.scheduler}


def saved(name: str, kind: str, text: str, folder: str) -> Seen:
    """Two steps, a checkpoint, and two more, whose figures are returned."""
    loop = Loop(name, kind, text, new=False)
    loop.steps(0, 2)
    baechi.save(loop.model, folder, **loop.state, step=2)
    return loop.steps(2, 4)


def saved_beside(name: str, kind: str, text: str, folder: str) -> Seen:
    """As `saved`, while it trains on; and once more, into a folder that cannot be."""
    loop = Loop(name, kind, text, new=False)
    loop.steps(0, 2)
    first = baechi.save(loop.model, folder, **loop.state, step=2, wait=False)
    seen = loop.steps(2, 4)
    second = baechi.save(loop.model, Path(folder) / ".metadata", **loop.state, wait=False)
    assert first is not None and first.done() and second is not None
    try:
        second.result()
    except baechi.CheckpointError:
        return seen
    raise AssertionError("a file is no folder")


def resumed(name: str, kind: str, text: str, folder: str) -> Seen:
    """The two steps after a checkpoint."""
    loop = Loop(name, kind, text, new=True)
    assert baechi.resume(loop.model, folder, **loop.state) == 2
    return loop.steps(2, 4)


def resumed_from_meta(name: str, kind: str, text: str, folder: str) -> Seen:
    """As `resumed`, of a model that has no memory before."""
    loop = Loop(name, kind, text, new=True, meta=True)
    assert baechi.resume(loop.model, folder, **loop.state) == 2
    return loop.steps(2, 4)


def dying(text: str, folder: str) -> str:
    """Save, and save again while the last rank dies when it has written its file."""
    loop = Loop("towers", "adamw", text, new=False)
    loop.steps(0, 2)
    baechi.save(loop.model, folder, **loop.state, step=2)
    if torch.distributed.get_rank() == 1:
        FileSystemWriter.write_data = lambda *_: os._exit(3)  # type: ignore[assignment]
    try:
        baechi.save(loop.model, folder, **loop.state, step=3)
    except baechi.RankError as error:
        return str(error)
    return "saved"


def saved_by_torch(name: str, kind: str, folder: str) -> Seen:
    """As `saved`, without baechi."""
    loop = Loop(name, kind, None, new=False)
    loop.steps(0, 2)
    checkpoint.save(_of_torch(loop), checkpoint_id=folder)
    return loop.steps(2, 4)


def resumed_by_torch(name: str, kind: str, folder: str) -> Seen:
    """As `resumed`, without baechi."""
    loop = Loop(name, kind, None, new=True)
    state = _of_torch(loop)
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(
        loop.model,
        loop.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    (scheduled,) = state["scheduler"]
    loop.scheduler.load_state_dict(scheduled)
    torch.set_rng_state(state["random"]["cpu"])
    assert state["step"] == 2
    return loop.steps(2, 4)


def _of_torch(loop: Loop) -> dict[str, Any]:
    model, optimizer = get_state_dict(loop.model, loop.optimizer)
    others = {
        "scheduler": (loop.scheduler.state_dict(),),
        "random": {"cpu": torch.get_rng_state()},
        "step": 2,
    }
    return {"model": model, "optimizer": optimizer, **others}


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Let files of this process grow no longer than this; the system refuses more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def failing(what: str, rank: int, text: str, folder: str) -> dict[str, Any]:
    """Save while one rank cannot; then go on, and save again."""
    loop = Loop("towers", "adamw", text, new=False)
    loop.steps(0, 2)
    baechi.save(loop.model, folder, **loop.state, step=2)
    files = sorted(os.listdir(folder))
    here = torch.distributed.get_rank() == rank
    more, state = {"step": 3}, loop.state
    if here and what == "state":
        state["scheduler"] = _Broken()
    if here and what == "step":
        more["step"] = 4
    if here and what == "folder":
        folder += "x"
    try:
        with full_disk(1000 if here and what == "disk" else resource.RLIM_INFINITY):
            baechi.save(loop.model, folder, **state, **more)
        error = ""
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    folder = folder.removesuffix("x")
    torch.distributed.barrier()
    after = sorted(os.listdir(folder))
    torch.distributed.barrier()
    seen = loop.steps(2, 4)
    baechi.save(loop.model, folder, **loop.state, step=4)
    left = len(list(Path(folder).iterdir()))
    return {"error": error, "kept": files == after, "seen": seen, "files": left}


def gathered(name: str, text: str, folder: str) -> dict[str, Any]:
    """The whole state of a model, and what `save_pretrained` writes."""
    loop = Loop(name, "adamw", text, new=False)
    loop.steps(0, 2)
    whole = baechi.whole_state(loop.model)
    if name == "gpt2":
        loop.model.model.save_pretrained(folder)
    return whole


def saved_after_failing(text: str, file: str) -> None:
    """Save where a file is, without asking what came of it, and save again."""
    loop = Loop("towers", "adamw", text, new=False)
    Path(file).touch()
    baechi.save(loop.model, file, wait=False)
    baechi.save(loop.model, file + " beside")


class _Broken:
    def state_dict(self) -> Any:
        raise RuntimeError("the loader has no state yet")

    def load_state_dict(self, state_dict: Any) -> Any:
        raise NotImplementedError
