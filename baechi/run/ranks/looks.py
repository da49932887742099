"""A look at a batch over ranks: what losses of microbatches count, where batches before did not tell.

The whole batch and its parts run as programs in evaluation, without gradients; only scalars are compared.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from baechi.errors import RankError
from baechi.run.pipeline.batch.evidence import Figures
from baechi.run.pipeline.batch.join import leaves
from baechi.run.pipeline.batch.judge import Case
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.ranks.call import call_whole_in_ranks
from baechi.run.runtime import Runtime
from baechi.torchlib.elsewhere import ElsewhereTensor


def look(model: nn.Module, runtime: Runtime, microbatches: Microbatches, case: Case) -> None:
    """Let the judge of a model hear of a batch."""
    with torch.no_grad(), _evaluated(model):
        results = [
            call_whole_in_ranks(model, runtime, microbatches.loss, None, given)
            for given in (case.inputs, *case.parts.parts)
        ]
    figures = {
        name: Figures.of(each[0], each[1:])
        for name, each in leaves(results)
        if all(_is_number(one) for one in each)
    }
    wrong = microbatches.judge.hear(case, figures)
    if wrong is not None:
        raise RankError(
            f"no rule gives what {wrong or 'the model returns'} is of the whole batch from its microbatches: "
            'say what they count with loss_weights="rows", "sum", "labels" or a function',
            on_all=True,
        )


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    modules = [module for module in model.modules() if module.training]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module in modules:
            module.training = True


def _is_number(one: object) -> bool:
    if not isinstance(one, torch.Tensor) or isinstance(one, ElsewhereTensor):
        return False
    return one.numel() == 1 and one.is_floating_point()
