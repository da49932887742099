"""What is told in the log, or as a warning, since it may be meant."""

import functools
import logging
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.records import LayerGraph

X = torch.ones(4, 8)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("verb", ["distribute", "fits", "place"])
def test_an_optimizer_that_counts_nothing(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    """Memory is that of inference: once, with the cure; in training nothing is said."""
    cluster = baechi.Cluster.virtual(2, memory="8KiB")
    profile = functools.partial(baechi.profile, chain(), X, cluster=cluster, source="estimate")

    def called(model: nn.Module, training: bool) -> Any:
        if verb == "place":
            return baechi.place(profile(training=training), cluster, optimizer="adam", effort=0)
        return getattr(baechi, verb)(model, X, cluster=cluster, optimizer="adam", effort=0, verify=False)

    caplog.set_level(logging.WARNING, "baechi.verbs")
    called(chain().train(), True)
    assert "counts nothing" not in caplog.text
    called(chain().eval(), False)
    assert caplog.text.count("optimizer='adam' counts nothing") == 1 and "training=True" in caplog.text


def test_compiling_a_distributed_model() -> None:
    """`torch.compile` of the whole has no effect, and a warning says so; a plain call has none."""
    where = {"0": 0, "1": 0, "2": 1}
    model = baechi.distribute(chain(), X, cluster=baechi.Cluster.virtual(2), device_map=where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = model(X)
    with pytest.warns(UserWarning, match="torch.compile of the whole model has no effect"):
        assert torch.equal(torch.compile(model, backend="eager")(X), expected)


@pytest.mark.parametrize("verb", ["distribute", "profile", "assign"])
def test_a_choice_of_outputs_that_is_none(verb: str) -> None:
    """The error has the value and both choices, and the model is as it was."""
    model, cluster = chain(), baechi.Cluster.virtual(2)
    plan = baechi.place(baechi.profile(chain(), X, cluster=cluster), cluster, "single")
    given = {"assign": {"plan": plan}}.get(verb, {"inputs": X, "cluster": cluster})
    with pytest.raises(ValueError, match=r"outputs is 'host': it takes 'inputs' .* or 'device'"):
        getattr(baechi, verb)(model, outputs="host", **given)
    assert not hasattr(model, "hf_device_map")


@pytest.mark.parametrize("placer", ["m-etf", "auto"])
def test_figures_agree(placer: str) -> None:
    """What all layers need at least, less what there is, is what is missing. The sum counted more."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    cluster = baechi.Cluster.virtual(2, memory="100KiB")
    with pytest.raises(baechi.PlacementError) as caught:
        baechi.distribute(
            model, torch.ones(2, 64), cluster=cluster, placer=placer, optimizer="adam", effort=0
        )
    text = str(caught.value)
    least, there = [_kib(text, word) for word in ("need at least ", "the devices have ")]
    assert there == pytest.approx(200)
    assert least - there == pytest.approx(_kib(text, "all devices together, by "), abs=0.1)


def _kib(text: str, after: str) -> float:
    return float(text.partition(after)[2].split(" KiB")[0])


def test_one_set_of_names() -> None:
    """The same limits and optimizers in `place` as in `distribute`, by name or as objects."""
    model = chain().train()
    graph: LayerGraph = baechi.profile(model, X, cluster="2xL4", training=True)
    adam = torch.optim.Adam(model.parameters())
    plan = baechi.place(graph, "2xL4", optimizer=adam, max_memory={0: "1GiB", 1: 0}, effort=0)
    assert plan.cluster.names == ("device:0",) and plan.cluster.devices[0].memory_bytes == 2**30
    assert plan.graph.graph["optimizer"] == "adam"


def test_two_plans_are_compared_as_on_the_command_line(tmp_path: Any) -> None:
    """By their files, or as they are."""
    graph = baechi.profile(chain(), X, cluster="2xL4")
    one, two = (baechi.place(graph, "2xL4", placer) for placer in ("single", "round-robin"))
    one.save(tmp_path / "one.json")
    difference = baechi.compare(tmp_path / "one.json", two)
    assert str(difference).startswith("one is faster than round-robin by ")
    assert difference.moved


class Weighted(nn.Module):
    """A weight for each column, of which there are as many as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (self.last(self.first(x)).square() * weights).mean()


def test_an_input_that_is_divided_and_should_not_be() -> None:
    """Which inputs microbatches have their rows of is said, and how one goes whole."""
    model, inputs = Weighted(), {"x": torch.arange(64.0).reshape(8, 8) / 9, "weights": torch.ones(8)}
    options: dict[str, Any] = {"cluster": baechi.Cluster.virtual(2), "microbatches": 4, "source": "estimate"}
    with pytest.raises(baechi.errors.CaptureError) as failed:
        baechi.distribute(model, inputs, **options)
    assert failed.value.__notes__ == [
        "it was given the first 2 rows of x, weights. "
        "split={'weights': None} gives the same as the whole batch"
    ]
    baechi.distribute(model, inputs, split={"weights": None}, **options)
    assert model(**inputs).ndim == 0


WRONG: list[dict[str, Any]] = [
    {"microbatches": 0},
    {"microbatches": "eight"},
    {"microbatches": 64},
    {"microbatches": 2, "order": "1f1bb"},
    {"microbatches": "auto", "order": "gpip"},
    {"microbatches": 2, "weights_apart": 3},
    {"microbatches": 2, "effort": -1},
    {"microbatches": 2, "split": {"0": 0}},
    {"plan": "nowhere.json"},
    {"compile": "stage"},
    {"compile": {"backend": "nope"}},
    {"compile": {"fullgraf": True}},
    {"split": 4},
    {"split": {"0": "x"}},
    {"split": {"0": -3}},
    {"effort": -1},
    {"effort": "most"},
    {"recompute": 3},
    {"recompute": ["nope"]},
    {"recompute": "nope"},
    {"no_split_module_classes": ["Nope"]},
    {"split_module_classes": "Nope"},
    {"max_memory": 5},
    {"optimizer": "adan"},
    {"source": "guess"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_argument_is_refused_before_the_model_runs(wrong: dict[str, Any]) -> None:
    """A capture of a large model takes a minute. The error names the value, and the model is as it was."""
    model, ran = chain().train(), []
    model.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises((ValueError, OSError, baechi.BaechiError)) as error:
        baechi.distribute(model, X, cluster=baechi.Cluster.virtual(2), **wrong)
    assert not ran and not hasattr(model, "hf_device_map")
    value = [*wrong.values()][-1]
    assert str(next(iter(value)) if isinstance(value, (list, dict)) else value) in str(error.value)
