"""Recurrent layers: torch's compiler takes them apart, so `"auto"` runs the code, and `"stages"` warns."""

import logging
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise
from run.programs.test_calls import AUTO, pair, programs, trained
from torch import Tensor, nn

import baechi

X = noise(8, 3, 6)


class Words(nn.Module):
    """A recurrent layer between two others."""

    kind: type[nn.RNNBase] = nn.LSTM
    dropout = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout()
        self.b = self.kind(6, 6, num_layers=2, batch_first=True, dropout=self.dropout)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.c(self.drop(self.b(self.a(x))[0]))
        return made.square().mean()


class Gated(Words):
    kind = nn.GRU


class Dropping(Words):
    dropout = 0.5


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", [Words, Gated])
def test_auto_runs_the_code(kind: Any, number: int, caplog: pytest.LogCaptureFixture) -> None:
    """It says why once."""
    with caplog.at_level(logging.WARNING, "baechi"):
        model, plain = pair(kind, number=number, how=AUTO, inputs={"x": X}, drops=False)
        for _ in range(2):
            assert torch.allclose(trained(model, X), trained(plain, X), rtol=1e-13)
            assert not programs(model)
    assert_same_gradients(model, plain, 1e-13)
    said = [record.message for record in caplog.records if "apart into" in record.message]
    assert len(said) == 1 and f"its {kind.kind.__name__} b apart" in said[0]


def test_stages_run_programs_and_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "baechi"):
        model, plain = pair(Words, inputs={"x": X}, drops=False)
        for _ in range(2):
            assert torch.allclose(trained(model, X), trained(plain, X), rtol=1e-13)
            assert programs(model)
    assert_same_gradients(model, plain, 1e-13)
    said = {record.message for record in caplog.records if "apart into" in record.message}
    assert len(said) == 1 and "compile='auto'" in said.pop()


def test_dropout_between_its_layers_is_refused() -> None:
    with pytest.raises(baechi.CompileError, match=r"its LSTM b has dropout .* nn\.Dropout between"):
        pair(Dropping, inputs={"x": X})
