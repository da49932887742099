"""Functional ops on devices of their own, where torch keeps devices apart: values, gradients, streams."""

import copy
from itertools import chain
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from run.worlds import Net
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi
from accelerator import NAMES, ToyMachine

from .devices import cluster, graph_of, there, whole

pytestmark = pytest.mark.default_cases(1)

WHERE = {"a": 0, "b": 1, "c": 2}


def joined(net: Any, x: Tensor) -> Any:
    a, b = net.a(x), net.b(x)
    both = torch.cat([a, b], 1) * torch.cat([b, a], 1)
    both += 1
    return net.c((both[:, :8] + a).relu()) + b


def in_a_region(reentrant: bool) -> Any:
    """The first ops of the region and of its second run are the same ones, on the same devices."""

    def code(net: Any, x: Tensor) -> Any:
        def region(y: Tensor) -> Tensor:
            mixed = y + x
            out: Tensor = net.c(net.a(mixed) + net.b(mixed)) * mixed
            return out

        first = net.a(x)
        return checkpoint(region, first * net.b(x), use_reentrant=reentrant) + first

    return code


CODES = {"joined": joined, "region": in_a_region(False), "reentrant region": in_a_region(True)}


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("name", CODES)
def test_anywhere(toy: ToyMachine, name: str, reorder: Any) -> None:
    """Each op on each device, alone and all of them."""
    model = seeded(lambda: Net(CODES[name], dict.fromkeys("abc", lambda: nn.Linear(8, 8))))()
    plain = whole(lambda: copy.deepcopy(model))
    graph = graph_of(copy.deepcopy(model), noise(3, 8), training=True)
    devices = cluster(*NAMES[:3])
    by_rule = baechi.Plan.from_device_map(graph, devices, WHERE).device_of
    free = [node for node in graph.placed() if graph.nodes[node].get("follows") is not None]
    assert free
    groups = [group for group in graph.groups(apart=True).values() if {*free} & {*group}]
    for moved in (*groups, [*chain(*groups)]):
        for seed, device in enumerate(devices.names):
            plan = baechi.Plan(graph, devices, {**by_rule, **dict.fromkeys(moved, device)})
            spread = baechi.assign(copy.deepcopy(model), plan, reorder=reorder)
            toy.restart(seed=seed)
            plain.zero_grad()
            outputs = [each(there(noise(3, 8))) for each in (plain, spread)]
            for output in outputs:
                output.sum().backward()
            faults = toy.faults()
            assert torch.equal(*[output.cpu() for output in outputs])
            for one, other in zip(spread.parameters(), plain.parameters(), strict=True):
                assert one.grad is not None and other.grad is not None
                assert torch.allclose(one.grad.cpu(), other.grad.cpu(), atol=1e-5)
            assert not faults
