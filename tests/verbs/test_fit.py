"""Whether a model fits: against the emulated cluster, which runs out of memory or does not."""

import functools
from typing import Any

import pytest
import torch
from run.two import Two
from torch import Tensor, nn

import baechi
from baechi import zoo
from baechi.verbs import fit
from baechi.verbs.judge import judged


def trains(model: nn.Module, inputs: tuple[Any, ...], cluster: baechi.Cluster) -> bool:
    """Whether two steps with Adam find room on the emulated devices, placed as `fits` placed."""
    try:
        graph = baechi.profile(model, inputs, cluster=cluster, source="estimate")
        plan = baechi.place(graph, cluster, optimizer="adam", effort=0)
    except baechi.PlacementError:
        return False
    baechi.assign(model, plan)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    with cluster:
        for _ in range(2):
            optimizer.zero_grad()
            model(*inputs).sum().backward()
            optimizer.step()
    return True


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("name", "memory"),
    [
        *[(name, "300KiB") for name in zoo.MODELS],
        ("gnmt", "700KiB"),
    ],
)
def test_the_answer_is_true(name: str, memory: str) -> None:
    """Yes means that the model trains there; no comes with the bytes that are missing, and the reason."""
    cluster = baechi.Cluster.virtual(2, memory=memory)
    model, inputs = zoo.MODELS[name]("small")
    answer = baechi.fits(model, inputs, cluster, optimizer="adam", training=True)
    assert trains(zoo.MODELS[name]("small")[0].train(), inputs, cluster) == bool(answer)
    assert answer.batch == inputs[0].shape[0]
    assert answer.largest_batch is not None and (answer.largest_batch >= answer.batch) == answer.fits
    if not answer:
        assert answer.reason and any(short > 0 for short in answer.short_bytes.values())
        assert "does not fit" in str(answer)


def test_the_largest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest batch fits and trains, and the next one does not. Each in doubt was run dry: a dozen."""
    tried: list[Any] = []

    def counted(*given: Any) -> baechi.Plan:
        tried.append(given)
        return judged(*given)

    monkeypatch.setattr(fit, "judged", counted)
    cluster = baechi.Cluster.virtual(2, memory="256KiB")

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    answer = baechi.fits(build(), torch.ones(2, 16), cluster, optimizer="adam", training=True)
    largest = answer.largest_batch
    assert answer and largest is not None and largest > 8 and len(tried) <= 5
    assert trains(build().train(), (torch.ones(largest, 16),), cluster)
    assert not baechi.fits(build(), torch.ones(largest + 1, 16), cluster, optimizer="adam", training=True)


def test_on_meta_and_without_a_batch() -> None:
    """A model on `meta` is answered; inputs without a first dimension have no largest batch."""
    cluster = baechi.Cluster.uniform(2, memory="64MiB")
    answer = baechi.fits(nn.Linear(8, 8, device="meta"), torch.ones(4, 8), cluster, training=False)
    assert answer and answer.largest_batch is not None and answer.largest_batch > 1000

    class Scalar(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    answer = baechi.fits(Scalar(), torch.tensor(1.0), cluster, training=False)
    assert answer and answer.batch is None and answer.largest_batch is None
    assert str(answer) == "fits"


def test_a_model_that_looks_at_values_with_meta_inputs_is_refused() -> None:
    """There is nothing in a tensor on `meta` to look at, and the error says what would help."""

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if float(x.sum()) > -1e9 else x

    cluster = baechi.Cluster.uniform(2, memory="1MiB")
    with pytest.raises(baechi.CaptureError, match=r"inputs are on the meta device .* with real inputs"):
        baechi.fits(Looks(8, 8), torch.ones(4, 8, device="meta"), cluster)


def test_the_largest_batch_was_run_for_real() -> None:
    """A model that looks at values is captured with real tensors, so `fits` ran the largest batch that 16 GiB
    hold on the host, and filled it; and for every model it made inputs of that batch."""
    batches: list[int] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        h: Tensor = m.b(m.a(x))
        if float(h.detach().sum()) > -1e9:
            batches.append(len(x))
        return h

    answer = baechi.fits(Two(forward), torch.ones(3, 4), baechi.Cluster.virtual(2), training=True)
    assert answer and answer.largest_batch is not None and answer.largest_batch > 1_000_000
    assert set(batches) == {3, 6}


def test_a_first_dimension_that_is_no_batch() -> None:
    """A detector is given a list of images: the first dimension of the first is its channels. With twice as
    many it does not run, and that raised, though all that was asked had an answer."""

    def forward(m: Any, x: list[Tensor]) -> Tensor:
        return m.b(m.a(torch.stack(x)))

    answer = baechi.fits(Two(forward), ([torch.ones(4), torch.ones(4)],), baechi.Cluster.virtual(2))
    assert answer and answer.largest_batch is None


def test_the_way_down_was_walked_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    """Where memory grows faster than the batch, the line through two batches promises too many. Each batch
    below was captured and placed, one after the other, until one fitted: for hours. And each dry run that
    found no room warned of tensors that its own error held."""
    batches: list[int] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        batches.append(len(x))
        h: Tensor = m.b(m.a(x))
        return (h @ h.T).sum()

    cluster = baechi.Cluster.virtual(2, memory="64KiB")
    answer = baechi.fits(Two(forward), torch.ones(2, 4), cluster, training=False)
    largest = answer.largest_batch
    assert largest is not None and max(batches) > 5 * largest and len(set(batches)) < 50
    fitting = [
        baechi.fits(Two(forward), torch.ones(n, 4), cluster, training=False) for n in (largest, largest + 1)
    ]
    assert [bool(one) for one in fitting] == [True, False]
    assert "still held" not in caplog.text


def test_one_tensor_given_twice() -> None:
    """`{"input_ids": ids, "labels": ids}`: resized, they were two tensors, hence another path, hence a wrong
    answer: the largest batch was said to be the one that was given."""

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10)

        def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(
                self.head(self.embed(input_ids)).flatten(0, 1), labels.flatten()
            )

    ids, limits = torch.zeros(2, 5, dtype=torch.long), dict.fromkeys((0, 1), "64KiB")
    asked = functools.partial(baechi.fits, Language(), cluster="2xL4", max_memory=limits, verify=False)
    once, twice = asked({"input_ids": ids, "labels": ids}), asked({"input_ids": ids, "labels": ids.clone()})
    assert once.largest_batch is not None and twice.largest_batch is not None
    assert 10 < once.largest_batch == pytest.approx(twice.largest_batch, rel=0.1)
    shifted = asked({"input_ids": ids[:, :-1], "labels": ids[:, 1:]})
    assert shifted.largest_batch is not None and shifted.largest_batch >= once.largest_batch


def test_one_example_takes_another_path() -> None:
    """A part of one row lies in one piece, so it is not copied: two and four examples say what more take."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(m.a(x)[:, 1:].contiguous()).sum()  # type: ignore[no-any-return]

    asked = functools.partial(baechi.fits, Two(forward), cluster="2xL4", verify=False, training=True)
    limits = dict.fromkeys((0, 1), "64KiB")
    one, two = [asked(torch.ones(size, 5, 4), max_memory=limits) for size in (1, 2)]
    assert one and two and one.largest_batch == two.largest_batch is not None and two.largest_batch > 10


def test_what_is_not_known_is_none() -> None:
    """Another path with each batch: nothing is known of larger ones, and the batch is no answer."""

    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in x:
            x = m.a(x) + 1
        return m.b(x)  # type: ignore[no-any-return]

    answer = baechi.fits(Two(forward), torch.ones(2, 4), baechi.Cluster.virtual(2))
    assert answer and answer.batch == 2 and answer.largest_batch is None


def test_its_options_are_those_of_the_others() -> None:
    """Text for the cluster, an optimizer that exists, limits by device; a foreign optimizer is refused."""
    model, x = nn.Linear(64, 64), torch.ones(2, 64)
    adam = torch.optim.Adam(model.parameters())
    limits = {0: "100KiB", 1: "100KiB"}
    assert baechi.fits(model, [x], "2xL4", optimizer=adam, effort=1, max_memory=limits, verify=False)
    tight = baechi.fits(model, x, "2xL4", optimizer=adam, max_memory={0: "1KiB", 1: "1KiB"}, verify=False)
    assert not tight and tight.short_bytes
    with pytest.raises(ValueError, match="trains none of the parameters"):
        baechi.fits(nn.Linear(64, 64), x, "2xL4", optimizer=adam)


@pytest.mark.full
def test_running_again_makes_room() -> None:
    """A batch that fits only if blocks run again fits with `recompute`, and the largest one grows."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 16))

    model, batch = nn.Sequential(block(), block(), block()).train(), torch.ones(64, 16)
    cluster = baechi.Cluster.virtual(1, memory="256KiB")
    without = baechi.fits(model, batch, cluster, optimizer="sgd")
    again = baechi.fits(model, batch, cluster, optimizer="sgd", recompute="auto")
    assert not without and again
    assert (without.largest_batch or 0) < 64 <= (again.largest_batch or 0)
