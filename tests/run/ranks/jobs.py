"""What ranks are asked to do; the same functions run in the test's own process, alone."""

from typing import Any

import torch
from run.ranks.models import built
from torch import nn

import baechi
from baechi.records.pipeline import Pipeline
from baechi.torchlib.elsewhere import ElsewhereTensor

EXACT = baechi.Stages(backend="aot_eager")


def trained(name: str, text: str, *, steps: int = 3) -> dict[str, Any]:
    """Train a model by a plan: losses, norms, and the weights that are here."""
    model, batch = built(name)
    pipeline = Pipeline.from_json(text)
    data = [batch() for _ in range(steps)]
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    objects = list(map(id, model.parameters()))
    baechi.distribute(
        model,
        data[0],
        plan=pipeline,
        optimizer=optimizer,
        loss_weights="rows",
        coupled="accept",
        compile=EXACT,
    )
    torch.manual_seed(7)
    losses, norms = [], []
    for inputs in data:
        optimizer.zero_grad()
        result = model(**inputs)
        loss = result["loss"] if isinstance(result, dict) else result
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        result = model(**data[0])
    losses.append((result["loss"] if isinstance(result, dict) else result).item())
    assert list(map(id, model.parameters())) == objects
    here = {key: one for key, one in model.state_dict().items() if not isinstance(one, ElsewhereTensor)}
    return {
        "losses": losses,
        "norms": norms,
        "weights": {key: one.detach().clone() for key, one in here.items()},
        "states": len(optimizer.state),
        "drawn": torch.rand(1).item(),
    }


def pipeline_of(name: str, devices: int, number: int, order: str, *, apart: bool = False) -> str:
    """A plan whose layers lie at random."""
    model, batch = built(name)
    cluster = baechi.Cluster.virtual(devices, memory="1GiB")
    graph = baechi.profile(
        model, batch(), cluster=cluster, source="estimate", microbatches=number, weights_apart=apart
    )
    plan = baechi.place(graph, cluster, "random:1")
    return baechi.pipeline(plan, number, order).to_json()  # type: ignore[arg-type]
