"""`out`: rules for outputs, and what is refused instead of guessed."""

from typing import Any

import pytest
import torch
from dispatch.chunks_of import small
from torch import nn

import baechi

X = torch.arange(20.0).view(10, 2)


class Sums(nn.Module):
    """Outputs of which none shows how it becomes one."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"sum": x.sum(0), "mean": x.mean(0), "max": x.amax(0), "rows": x * 2, "count": len(x)}


def test_rules_by_name() -> None:
    out = {"sum": "sum", "mean": "mean", "max": "max", "count": "sum"}
    found, expected = baechi.dispatch(Sums(), small(3), out=out)(X), Sums()(X)
    for name in ("sum", "mean", "max", "rows"):
        torch.testing.assert_close(found[name], expected[name])
    assert found["count"] == 10


def test_a_function_and_a_dimension() -> None:
    found = baechi.dispatch(nn.Identity(), small(3), out=lambda parts: len(parts))(X)
    assert found == 4
    torch.testing.assert_close(
        baechi.dispatch(nn.Identity(), small(5), out=("cat", 1))(X), torch.cat([X[:5], X[5:]], 1)
    )


@pytest.mark.parametrize("size", [3, 5])
def test_what_does_not_grow_and_differs_is_refused_by_name(size: int) -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"rows": x, "loss": x.mean()}

    with pytest.raises(
        baechi.FatalError, match=r"output 'loss' .* chunks have other values.*out=\{'loss': \.\.\.\}"
    ):
        baechi.dispatch(Mean(), small(size))(X)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("same", "chunks have other values"),
        ("sum", "needs one shape"),
        ("cat", "no dimension"),
        (("cat", 7), "go together"),
    ],
)
def test_rules_that_do_not_fit_are_refused(out: Any, message: str) -> None:
    model = nn.Identity() if out != "cat" else Total()
    with pytest.raises(baechi.FatalError, match=message):
        baechi.dispatch(model, small(3), out=out)(X)


class Total(nn.Module):
    """A number for all rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


@pytest.mark.parametrize("out", ["concat", 3, {"y": "maen"}, ["cat", "no"]])
def test_what_is_no_rule_is_refused_before_anything_runs(out: Any) -> None:
    with pytest.raises(baechi.FatalError, match="out says"):
        baechi.dispatch(nn.Identity(), out=out)


def test_outputs_that_vary_in_kind_are_refused() -> None:
    class Varies(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x if len(x) == 3 else (x,)

    with pytest.raises(baechi.FatalError, match="another type in other chunks"):
        baechi.dispatch(Varies(), small(3))(X)
