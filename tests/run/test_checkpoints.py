"""Checkpoints in one process: what is read, what is refused, and what is left as it was."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import FileSystemReader

import baechi


class Net(nn.Module):
    """Two blocks, a buffer, a tie, and a state that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8)
        self.third.weight = self.first.weight
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.third(self.second(self.norm(self.first(x)).relu()))

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made(seed: int, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    if options:
        baechi.distribute(model, torch.randn(8, 8), optimizer=optimizer, **options)
    return model, optimizer


EMULATED = {"cluster": baechi.Cluster.virtual(2, memory="1GiB")}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "map": {**EMULATED, "device_map": {"first": 0, "third": 0, "norm": 1, "second": 1}},
    "split": {**EMULATED, "split": {"second": 2}},
}


@pytest.mark.parametrize("saves", WAYS)
@pytest.mark.parametrize("reads", WAYS)
def test_any_plan_reads_any(saves: str, reads: str, tmp_path: Path) -> None:
    """Placed, split over devices, or plain: the steps that follow are the same."""
    model, optimizer = made(0, **WAYS[saves])
    trained(model, optimizer, 2)
    baechi.save(model, tmp_path / "run", optimizer=optimizer, step=2)
    other, again = made(1, **WAYS[reads])
    assert baechi.resume(other, tmp_path / "run", optimizer=again) == 2
    state = torch.get_rng_state()
    assert other.count == model.count
    found = trained(other, again, 2)
    torch.set_rng_state(state)
    expected = trained(model, optimizer, 2)
    if "split" in (saves, reads) and saves != reads:
        torch.testing.assert_close(found, expected)  # shards add up in another order
    else:
        assert found == expected


def test_weights_alone(tmp_path: Path) -> None:
    model, optimizer = made(0)
    trained(model, optimizer, 1)
    baechi.save(model, tmp_path / "run", optimizer=optimizer)
    other, _ = made(1, **WAYS["map"])
    drawn = torch.get_rng_state()
    assert baechi.load(other, tmp_path / "run") is other
    assert torch.equal(drawn, torch.get_rng_state())
    for name, weight in model.state_dict(keep_vars=True).items():
        if isinstance(weight, torch.Tensor):
            assert torch.equal(weight, other.state_dict()[name]), name
    other, again = made(1, **WAYS["map"])
    baechi.load(other, tmp_path / "run", optimizer=again)
    assert len(again.state) == len(optimizer.state)


def test_a_model_without_memory(tmp_path: Path) -> None:
    model, _ = made(0)
    baechi.save(model, tmp_path / "run")
    with torch.device("meta"):
        other = Net()
    baechi.distribute(other, torch.randn(8, 8), **WAYS["map"])
    baechi.load(other, tmp_path / "run")
    assert torch.equal(other.first.weight, model.first.weight)
    assert other.first.weight is other.third.weight
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    trained(model, optimizer, 2)
    baechi.save(model, tmp_path / "run", optimizer=optimizer, step=2)
    with torch.device("meta"):
        other = Net()
    again = torch.optim.AdamW(other.parameters(), 0.05)
    baechi.distribute(other, torch.randn(8, 8), optimizer=again, **WAYS["map"])
    assert baechi.resume(other, tmp_path / "run", optimizer=again) == 2
    state = torch.get_rng_state()
    found = trained(other, again, 2)
    torch.set_rng_state(state)
    assert found == trained(model, optimizer, 2)
    with torch.device("meta"):
        bare = Net()
    with pytest.raises(baechi.CheckpointError, match="lies on meta, and the model is not distributed"):
        baechi.load(bare, tmp_path / "run")
    with pytest.raises(baechi.BaechiError, match="lies on meta and has no values"):
        baechi.save(bare, tmp_path / "run")


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    model, optimizer = made(0)
    before = {name: one.clone() for name, one in model.named_parameters()}
    assert baechi.resume(model, tmp_path / "none", optimizer=optimizer) == 0
    assert all(torch.equal(one, before[name]) for name, one in model.named_parameters())
    with pytest.raises(FileNotFoundError):
        baechi.load(made(0, **WAYS["map"])[0], tmp_path / "none")


def test_other_files_stay_and_former_ones_go(tmp_path: Path) -> None:
    model, optimizer = made(0)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "0123abcd__0_0.distcp").write_text("of a save that was killed")
    for step in (1, 2):
        baechi.save(model, tmp_path, optimizer=optimizer, step=step)
    names = {file.name for file in tmp_path.iterdir()}
    assert len(names) == 3
    assert {".metadata", "notes.txt"} < names
    assert baechi.resume(model, tmp_path, optimizer=optimizer) == 2


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A file in place of the folder, a value that no file takes: the former checkpoint stays."""
    model, _ = made(0)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(baechi.CheckpointError, match=r"no checkpoint was saved in .*, there is none now"):
        baechi.save(model, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    baechi.save(model, tmp_path / "run", step=1)
    files = sorted(os.listdir(tmp_path / "run"))
    model.count = {1: 2}  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"_extra_state.count has the key 1, which torch would make a text"):
        baechi.save(model, tmp_path / "run", step=2)
    model.count = (one for one in ())  # type: ignore[assignment]
    with pytest.raises(baechi.CheckpointError, match="the former checkpoint there is as it was: TypeError"):
        baechi.save(model, tmp_path / "run", step=2)
    assert sorted(os.listdir(tmp_path / "run")) == files
    model.count = 0
    assert baechi.resume(model, tmp_path / "run") == 1


def test_what_does_not_match(tmp_path: Path) -> None:
    """Each is named, and nothing is changed."""
    model, optimizer = made(0)
    trained(model, optimizer, 1)
    baechi.save(model, tmp_path / "run", optimizer=optimizer)
    baechi.save(model, tmp_path / "bare")
    folder = tmp_path / "run"
    other, again = made(1)
    before = {name: one.clone() for name, one in other.named_parameters()}
    schedule = torch.optim.lr_scheduler.StepLR(again, 1)
    with pytest.raises(baechi.CheckpointError, match="has no scheduler: its parts are model, optimizer"):
        baechi.resume(other, folder, optimizer=again, scheduler=schedule)
    with pytest.raises(baechi.CheckpointError, match="was saved with optimizer=, so give it here"):
        baechi.resume(other, folder)
    with pytest.raises(baechi.CheckpointError, match="has no optimizer"):
        baechi.load(other, tmp_path / "bare", optimizer=again)
    wide = Net()
    wide.second = nn.Linear(8, 9)
    with pytest.raises(baechi.CheckpointError, match=r"second.weight is \(8, 8\) in the checkpoint, "):
        baechi.load(wide, folder)
    more = Net()
    more.fourth = nn.Linear(8, 8)
    with pytest.raises(baechi.CheckpointError, match=r"fourth.weight"):
        baechi.resume(more, folder, optimizer=torch.optim.AdamW(more.parameters()))
    strange = torch.optim.AdamW([*other.parameters(), nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=r"a tensor of shape \(3,\), which is no parameter of this Net"):
        baechi.save(other, folder, optimizer=strange)
    joined = torch.optim.AdamW(other.parameters(), 0.05)
    groups = [{"params": [other.first.weight]}, {"params": [*list(other.parameters())[1:]], "lr": 0.1}]
    baechi.save(other, tmp_path / "apart", optimizer=torch.optim.AdamW(groups, 0.05))
    with pytest.raises(baechi.CheckpointError, match=r"in groups of other options \(lr: 0.05 and 0.1\)"):
        baechi.load(other, tmp_path / "apart", optimizer=joined)
    assert all(torch.equal(one, before[name]) for name, one in other.named_parameters())
    assert not again.state


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_reading_runs_no_code(tmp_path: Path) -> None:
    """Neither the table nor a value may name a function."""
    model, _ = made(0)
    model.count = Harmful()  # type: ignore[assignment]
    baechi.save(model, tmp_path / "run")
    other, _ = made(1)
    with pytest.raises(baechi.CheckpointError, match="reading it could run code"):
        baechi.load(other, tmp_path / "run")
    table = FileSystemReader(tmp_path / "run").read_metadata()
    table.planner_data = Harmful()
    (tmp_path / "run" / ".metadata").write_bytes(pickle.dumps(table))
    with pytest.raises(baechi.CheckpointError, match=r"names posix.system, which is none of its words"):
        baechi.load(other, tmp_path / "run")
    (tmp_path / "run" / ".metadata").write_bytes(b"no table")
    with pytest.raises(baechi.CheckpointError, match="is no table of a checkpoint"):
        baechi.resume(other, tmp_path / "run")


def test_the_whole_state(tmp_path: Path) -> None:
    for options in WAYS.values():
        model, _ = made(0, **options)
        whole = baechi.whole_state(model)
        plain, _ = made(0)
        for name, weight in plain.state_dict().items():
            if isinstance(weight, torch.Tensor):
                assert torch.equal(whole[name], weight), name
        assert whole["first.weight"].data_ptr() == whole["third.weight"].data_ptr()
