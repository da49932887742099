"""Training loops as users write them: over ranks each gives what it gives in one process."""

from pathlib import Path

import pytest
import torch
from run.ranks.jobs import (
    Scores,
    lengths,
    loaded,
    looped,
    pipeline_of,
    placed_at_random,
    planned_here,
    unsplit_and_whole,
    with_a_microbatch_of_one_row,
)
from run.ranks.models import Masked, built, words
from run.ranks.processes import Ranks
from safetensors.torch import save_file

from baechi.run.ranks.weights import state_dict
from baechi.torchlib.elsewhere import leave_elsewhere

LOOPS = ["accumulated", "frozen", "fewer rows", "zeros", "foreach", "autocast", "kept"]


@pytest.fixture(scope="module")
def masked() -> str:
    torch.manual_seed(0)
    batch = {"x": words(), "y": words()}
    return placed_at_random(Masked().double(), batch, 2, 2, "1f1b")


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("what", LOOPS)
def test_as_in_one_process(two: Ranks, masked: str, what: str) -> None:
    """The second batch is the first one that tells which labels count."""
    two.begin(looped, masked, what)
    alone = looped(masked, what)
    for one in two.answers():
        assert not isinstance(one, Exception), one
        assert (one["seen"], one["grads"]) == (alone["seen"], alone["grads"])
        for key, weight in one["weights"].items():
            assert torch.equal(weight, alone["weights"][key]), key


def test_an_output_with_rows_is_no_scalar_in_a_microbatch_of_one(two: Ranks) -> None:
    """All of its parts stay on the rank that made them."""
    torch.manual_seed(0)
    x, y = torch.randn(4, 8), torch.randn(4)
    with torch.no_grad():
        loss, scores = Scores()(x[:3], y[:3])
    first, second = two(with_a_microbatch_of_one_row)
    assert first == (pytest.approx(loss.item()), None)
    assert second == (pytest.approx(loss.item()), pytest.approx(scores.tolist()))


def test_only_the_own_part_is_loaded(two: Ranks, tmp_path: Path) -> None:
    model, _ = built("towers")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    text = pipeline_of("towers", 2, 2, "1f1b")
    found = two(loaded, str(tmp_path), text)
    alone = loaded(str(tmp_path), text)
    whole = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    for one in found:
        assert not isinstance(one, Exception), one
        assert one["losses"] == alone["losses"]
        assert 0 < one["bytes"] < whole
    assert sum(one["bytes"] for one in found) == whole


def test_an_optimizer_that_begins_with_state_has_that_of_its_own_weights() -> None:
    """Adagrad makes its state when it is made, also of weights that lie elsewhere."""
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    leave_elsewhere(weights[1], "rank1/cpu", "weight", torch.device("cpu"))
    packed = state_dict(torch.optim.Adagrad(weights))
    assert packed["state"].keys() == {0, 2}
    assert packed["elsewhere"].keys() == {1}


@pytest.mark.full
def test_one_model_split_and_whole(two: Ranks) -> None:
    """Calls in microbatches, whole and in evaluation follow each other, and draw what one process draws."""
    text = pipeline_of("drops", 2, 2, "gpipe")
    two.begin(unsplit_and_whole, text)
    alone = unsplit_and_whole(text)
    assert two.answers() == [alone, alone]


def test_planned_by_the_ranks(two: Ranks) -> None:
    """Without a plan that was made before."""
    two.begin(planned_here)
    (loss, _), found = planned_here(), two.answers()
    assert found == [(loss, ["rank0/cpu", "rank1/cpu"])] * 2


@pytest.mark.full
def test_many_lengths(two: Ranks) -> None:
    """Each is one more kind of call."""
    two.begin(lengths)
    alone, found = lengths(), two.answers()
    assert found == [alone, alone]
