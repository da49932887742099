"""Models and arguments that `distribute` cannot take: it says what to give instead."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

import baechi

X = torch.ones(4, 8)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def with_lazy_buffer() -> nn.Module:
    model = chain()
    model.register_buffer("table", nn.UninitializedBuffer())
    return model


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "scripted": (
        lambda: torch.jit.script(chain()),
        "which torch.jit made.* Distribute the module that it was",
    ),
    "traced": (lambda: torch.jit.trace(chain(), X), "which torch.jit made"),
    "frozen": (lambda: torch.jit.freeze(torch.jit.script(chain().eval())), "which torch.jit made"),
    "traced inside": (
        lambda: nn.Sequential(torch.jit.trace(nn.Linear(8, 8), X), nn.Linear(8, 8)),
        "its part 0 was traced by torch.jit.trace",
    ),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(8)),
        r"0.weight, 0.bias \(LazyLinear\) has no shape.*call the",
    ),
    "lazy buffer": (with_lazy_buffer, r"table \(Sequential\) has no shape before the first call"),
    "parallel": (lambda: nn.DataParallel(chain()), "model is a DataParallel: distribute what is inside"),
    "parallel inside": (
        lambda: nn.Sequential(nn.DataParallel(chain())),
        "its part 0 is a DataParallel: distribute what is inside, its .module",
    ),
    "a list": (lambda: nn.ModuleList([nn.Linear(8, 8)]), "has no forward"),
    "a class": (lambda: nn.Linear, r"model is the class Linear: .* give an instance, Linear\(...\)"),
    "a function": (lambda: lambda x: x, "model is of type function: .* goes into the forward of one"),
    "a program": (lambda: torch.export.export(chain(), (X,)), "give the module that was exported"),
    "nothing": (lambda: None, "model is of type NoneType"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_none_of_ours(name: str) -> None:
    make, says = MODELS[name]
    with pytest.raises((baechi.BaechiError, TypeError), match=says):
        baechi.distribute(make(), X, cluster=baechi.Cluster.virtual(2), placer="m-etf")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp2"])
def test_models_of_several_processes(kind: str) -> None:
    """Parallel models are wrapped the other way round; sharded ones are not taken."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model = chain()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        fully_shard(model)
    says = "distribute what is inside.*wrap the distributed model" if kind == "ddp" else "sharded by FSDP"
    with pytest.raises(baechi.BaechiError, match=says):
        baechi.distribute(model, X, cluster=baechi.Cluster.virtual(2))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"recompute": 5}, "recompute is 5: it takes 'auto', or names"),
        ({"recompute": True}, "recompute is True"),
        ({"no_split_module_classes": 5}, "no_split_module_classes is 5: it takes names"),
        ({"no_split_module_classes": [nn.Linear(1, 1)]}, "no_split_module_classes is .Linear"),
        ({"training": "yes"}, "training is 'yes': it takes True or False, or None"),
        ({"accumulate": 2}, "accumulate is 2: it takes True or False"),
        ({"reorder": "often"}, "reorder is 'often': it takes 'auto', True, False or 'threads'"),
        ({"order": 5, "microbatches": 2}, "order is 5: it takes 'auto', 'gpipe', '1f1b'"),
        ({"loss": 5, "microbatches": 2}, "loss is 5: a function"),
    ],
)
def test_arguments_of_a_wrong_type(given: dict[str, Any], says: str) -> None:
    """The error has the argument, the value, and what it takes."""
    with pytest.raises(ValueError, match=says):
        baechi.distribute(chain(), X, cluster=baechi.Cluster.virtual(2), placer="m-etf", **given)


def test_scripted_layers_and_compiled_models_run() -> None:
    """A scripted part is one layer, and what torch compiled is a module as any."""
    plain = nn.Sequential(torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 2))
    expected, cluster = plain(X), baechi.Cluster.virtual(2)
    model = baechi.distribute(plain, X, cluster=cluster, placer="round-robin")
    assert torch.equal(model(X), expected)
