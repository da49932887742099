"""Architectures in microbatches: dry runs and predictions beside runs with values on the emulated cluster.

`PYTHONPATH=.:tests python -m run.pipeline.witness --every 47` runs a part of the cells. A line is a cell: by
how many percent the dry run is off, then the prediction; its step, then its peaks, device by device.
"""

from collections import Counter

import torch
from architectures import loss_of
from architectures.base import Architecture
from run.pipeline.by_loop import WithLoss
from run.pipeline.matrix import asked_for
from torch import nn

import baechi
from baechi.errors import BaechiError
from baechi.records import Device
from baechi.records.inputs import Inputs
from baechi.verbs.batches import batch_size, resized_batch

RATES = {1e9: 2.0, 1e12: 5.0}
"""Operations a second: kernels are long, or launches bound the step. With the percent allowed."""

ROWS = 8
_LAUNCH_S = 5e-6

Figures = tuple[float, list[float]]


def cluster_of(devices: int, flops_per_s: float) -> baechi.Cluster:
    """Equal emulated devices."""
    rates = {"float64": flops_per_s, "float32": flops_per_s}
    made = tuple(Device(f"cpu:{n}", "cpu", 2**34, 1.0, rates, flops_per_s) for n in range(devices))
    return baechi.Cluster(made, link=baechi.Link(5e-6, 3e9), emulated=True, launch_s=_LAUNCH_S)


def measured(
    architecture: Architecture, cluster: baechi.Cluster, placer: str, order: str, microbatches: int
) -> tuple[Figures, Figures]:
    """By how many percent a dry run, then the prediction, is off: the step, and peaks of devices in use."""
    torch.manual_seed(0)
    model = WithLoss(architecture.build(), loss_of).train()
    _leave_none_out(model)
    given = Inputs(**architecture.inputs())
    size = batch_size(given)
    assert size is not None
    inputs = resized_batch(given, size, ROWS).kwargs
    graph = baechi.profile(
        model, inputs, cluster=cluster, training=True, source="estimate", microbatches=microbatches
    )
    pipeline = baechi.pipeline(baechi.place(graph, cluster, placer), microbatches, order)  # type: ignore[arg-type]
    dry = baechi.dry_run(model, Inputs(**inputs), pipeline)
    baechi.distribute(model, plan=pipeline, loss_weights="rows")
    with cluster:
        for _ in range(3):  # the first two are judged beside the whole batch
            cluster.emulation.synchronize()
            model.zero_grad()
            model(**inputs).backward()
        run = cluster.emulation.timeline()
    used = [name for name in cluster.names if run.peak_bytes[name]]

    def off(found: baechi.Timeline) -> Figures:
        peaks = [_percent(found.peak_bytes[name], run.peak_bytes[name]) for name in used]
        return _percent(found.makespan_s, run.makespan_s), peaks

    return off(dry), off(pipeline.timeline)


def _leave_none_out(model: nn.Module) -> None:
    """Some models skip layers by chance in training. Then no prediction can be right: it has all of them."""
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
                if isinstance(getattr(holder, name, None), float):
                    setattr(holder, name, 0.0)


def _percent(found: float, run: float) -> float:
    return round(100 * (found / run - 1), 2)


def main() -> None:
    """Run the cells; print each, and how many are within what is allowed."""
    counts: Counter[str] = Counter()
    for number, (architecture, devices, placer, order, rate) in asked_for(__doc__, RATES):
        name = f"{architecture.name} {devices} {placer} {order} {rate:.0e}"
        try:
            dry, predicted = measured(
                architecture, cluster_of(devices, rate), placer, order, (2, 4)[number % 2]
            )
        except (BaechiError, RuntimeError, ValueError) as error:
            counts["not run"] += 1
            print(name, str(error).partition("\n")[0], flush=True)
            continue
        exact = abs(dry[0]) <= 0.5 and all(0 <= peak <= 1 for peak in dry[1])
        counts["dry runs right"] += exact
        counts["steps right"] += abs(predicted[0]) <= RATES[rate]
        counts["ran"] += 1
        print(name, "dry", *dry, "predicted", *predicted, flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
