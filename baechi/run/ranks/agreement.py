"""That all ranks do the same: asked in each step before anything is sent, with one small message.

A difference is found before it can hang or abort, and named: what each rank has, and which differ.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.ranks.spot import Spot
from baechi.errors import RankError
from baechi.records.inputs import Inputs
from baechi.run.ranks.schedule import Schedule
from baechi.run.runtime import Runtime
from baechi.torchlib.tensors.pytree import tensors_in

_SHOWN = 200


def agree(runtime: Runtime, schedule: Schedule, phase: int, inputs: Inputs | None = None) -> None:
    """Raise on all ranks if they were given something else, or would send something else."""
    backend = runtime.backend
    assert isinstance(backend, RankDevices)
    given = [] if inputs is None else list(tensors_in(inputs.args, inputs.kwargs))
    if inputs is not None:
        runtime.ranked_steps += 1
    step = backend.wires.step = runtime.ranked_steps
    backend.wires.be_at(partial(Spot, step, -1))
    looks = [f"{str(one.dtype)[6:]} of shape {tuple(one.shape)}" for one in given]
    sums = list(_sums(given)) if step & (step - 1) == 0 else []
    clock_s = backend.clock_s
    mine = [step, _number(looks), _number(sums), schedule.digests[phase], int(clock_s is not None)]
    found = backend.wires.gather([*mine, _in_bits(clock_s or 0.0)])
    if any(one[:-1] != mine for one in found):
        _refuse(backend, found, (looks, sums, list(map(str, schedule.transfers))))
    if inputs is not None:
        backend.meet(max([_of_bits(one[-1]) for one in found]))


def _refuse(backend: RankDevices, found: Sequence[Sequence[int]], mine: Sequence[list[str]]) -> None:
    steps = [one[0] for one in found]
    if len({one[-2] for one in found}) > 1:
        there = [rank for rank, one in enumerate(found) if one[-2]]
        raise RankError(
            f"of {len(found)} ranks only {there} call the model inside of `with cluster:`: all have to, or "
            "none",
            on_all=True,
        )
    said = backend.wires.gather_objects(mine)
    whats = (
        "inputs of other shapes: give every rank the same batch",
        "integer inputs of other values: give every rank the same batch (seed its loader alike)",
        "another order of transfers",
    )
    if len(set(steps)) > 1:
        raise RankError(
            f"ranks are in different steps: {steps}. Every rank has to call the model as often", on_all=True
        )
    for number, what in enumerate(whats):
        each = [one[number] for one in said]
        differing = [rank for rank, one in enumerate(each) if one != each[0]]
        if differing:
            pairs = zip_longest(each[0], each[differing[0]], fillvalue="nothing")
            first, other = next((one, two) for one, two in pairs if one != two)
            raise RankError(
                f"rank {backend.wires.number_of(differing[0])} has {what}: there {other[:_SHOWN]}, and "
                f"{first[:_SHOWN]} on rank {backend.wires.number_of(0)} (step {steps[0]})",
                on_all=True,
            )
    raise RankError(f"ranks differ in step {steps[0]}: {found}", on_all=True)


def _sums(given: Sequence[torch.Tensor]) -> Iterator[str]:
    """Of integer tensors, a checksum of what they hold."""
    for number, one in enumerate(given):
        if not one.is_floating_point() and not one.is_complex():
            held = one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            yield f"input tensor {number}: checksum {zlib.crc32(held.tobytes())}"


def _in_bits(seconds: float) -> int:
    return int.from_bytes(struct.pack(">d", seconds), signed=True)


def _of_bits(number: int) -> float:
    return float(struct.unpack(">d", number.to_bytes(8, signed=True))[0])


def _number(lines: Sequence[str]) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(lines).encode()).digest()[:7])
