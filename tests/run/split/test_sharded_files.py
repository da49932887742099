"""Checkpoints and optimizer state of a weight that no device can hold: read and written shard by shard."""

import copy
import io
from pathlib import Path

import pytest
import torch
from run.split.split_layers import TOLERANCE, Tied, twins, words
from safetensors.torch import save_file

import baechi
from baechi.torchlib.shards.weight import ShardedWeight

WORDS = 4000
INPUTS = (words(1, 2, below=WORDS), words(1, 2, below=WORDS))
CLUSTER = "300KiB"
"""A third of the weight takes 164 KiB, the whole 500."""


def large() -> Tied:
    return Tied(WORDS, 16)


def test_a_checkpoint(tmp_path: Path) -> None:
    """`baechi.load` fills weights that are nowhere yet, and those that lie on their devices."""
    _, plain = twins(large)
    save_file({name: value.clone() for name, value in plain.state_dict().items()}, tmp_path / "w.safetensors")
    with torch.device("meta"):
        model = large().double().eval()
    cluster = baechi.Cluster.virtual(3, memory=CLUSTER)
    spec = baechi.BatchSpec({"out": 1334}, device_matrix=[0, 1, 2])
    baechi.distribute(model, INPUTS, cluster=cluster, split={"head": spec}, effort=0, verify=False)
    with cluster, torch.no_grad():
        for _ in range(2):
            baechi.load(model, tmp_path / "w.safetensors")
            assert model(*INPUTS).item() == pytest.approx(plain(*INPUTS).item(), abs=TOLERANCE)
        model.load_state_dict(plain.state_dict())
        assert isinstance(model.head.weight, ShardedWeight)
        with pytest.raises(baechi.BaechiError, match="out of memory"):
            torch.empty(WORDS, 16, dtype=torch.float64, device=model.head.weight.device)


def test_an_optimizer_s_state() -> None:
    """A step, a file and a step again: no device has room for the whole of anything."""
    model, plain = twins(large)
    cluster = baechi.Cluster.virtual(3, memory="1.1MiB")
    spec = baechi.BatchSpec({"out": 1334}, device_matrix=[0, 1, 2])
    baechi.distribute(model, INPUTS, cluster=cluster, split={"head": spec}, effort=0, verify=False)
    for network in (model, plain):
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        with cluster:
            for _ in range(2):
                optimizer.zero_grad()
                network(*INPUTS).backward()
                optimizer.step()
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer.load_state_dict(torch.load(file, weights_only=True))
            peaks = baechi.last_step(model).peak_bytes
    torch.testing.assert_close(model.head.weight.cpu(), plain.head.weight.detach(), rtol=0, atol=TOLERANCE)
    assert max(peaks.values()) < 1.1 * 2**20


def test_copies_have_no_doubled_views() -> None:
    """A deep copy of a split model shares what the model shares, and has shards as large as the model's."""
    model, _ = twins(large)
    cluster = baechi.Cluster.virtual(3, memory="1MiB")
    baechi.distribute(model, INPUTS, cluster=cluster, split={"head": 3}, effort=0, verify=False)
    made = copy.deepcopy(model)
    assert made.embed.weight is made.head.weight
    pairs = zip(made.head.weight.shards, model.head.weight.shards, strict=True)
    for new, old in pairs:
        assert new.untyped_storage().nbytes() == old.untyped_storage().nbytes() == new.numel() * 8
        assert new.untyped_storage().data_ptr() != old.untyped_storage().data_ptr()
