"""How long devices will take for chunks: chunks without values on an emulated cluster, before the first real
one.

It is the emulated cluster's own clock, with the host's launches and the transfers there and back. So on
emulated devices it is what will be measured; on real ones a first guess by datasheets, scaled as chunks are
measured.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.emulation import Emulation
from baechi.dispatch.chunks.abstract import AbstractCall
from baechi.dispatch.replicas.replica import DeviceReplica
from baechi.dispatch.replicas.weights import weights_in
from baechi.dispatch.schedulers.hybrid import HybridScheduler
from baechi.dispatch.schedulers.targets import Target
from baechi.run.dry.preparation import prepared_for_dry_run
from baechi.run.dry.valueless import valueless_inputs, valueless_weights
from baechi.torchlib.fakes.kernels import ShapeKernels

logger = logging.getLogger(__name__)

_PARTS = (1.0, 0.75, 0.5, 0.25, 0.125)
"""Chunks of these parts of a batch are tried, and of one item."""


def estimate_paces(model: nn.Module, scheduler: HybridScheduler, call: AbstractCall) -> None:
    """Tell a scheduler how long its devices take, as far as that can be known before."""
    for target in scheduler.targets:
        if scheduler.paces[target.name] or target.cluster is None or target.plan is not None:
            continue
        most = min(scheduler.batch_sizes[target.name], call.total, call.most or call.total)
        sizes = sorted({max(1, round(most * part)) for part in _PARTS} | {1})
        try:
            scheduler.paces[target.name].known.update(_seconds(model, target, call, sizes))
        except Exception as error:  # the model's code may raise anything on valueless tensors
            logger.info("the pace of %s is not known before it is measured (%s)", target.name, error)


def _seconds(model: nn.Module, target: Target, call: AbstractCall, sizes: Sequence[int]) -> dict[int, float]:
    assert target.cluster is not None
    cluster = replace(target.cluster, emulated=True)
    backend = VirtualDevices(cluster.names)
    found = {}
    with prepared_for_dry_run(model, gpus=False), valueless_weights(model), torch.no_grad():
        replica = DeviceReplica(target.name, backend, target.device, model)
        calls = {size: valueless_inputs(call.arguments(0, size)) for size in sizes}
        with Emulation(cluster, ShapeKernels()) as emulation:
            backend.move_weights(weights_in(model), target.device)
            for size in sizes:
                emulation.synchronize()
                begun_s = emulation.now_s
                with backend.step():
                    replica.forget()
                    replica.finish(replica.launch(calls[size]))
                found[size] = emulation.now_s - begun_s
        del calls
    return found
