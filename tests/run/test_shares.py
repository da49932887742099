"""Modules without state that several models share."""

import copy
import gc

import torch
from run.two import Two, same_on_two_devices
from same import identical
from torch import nn

import baechi

SHARED = nn.ReLU()


def test_activations_shared_by_all_models() -> None:
    """Some libraries make one activation module for the whole process: distributing one model made
    every other one look distributed, for good."""

    def build() -> nn.Module:
        return Two(lambda m, x: m.b(m.act(m.a(x))), act=SHARED)

    plain, x = build(), torch.ones(3, 4)
    expected = plain(x)
    first, second = same_on_two_devices(build), same_on_two_devices(build)
    assert identical(plain(x), expected)
    x = torch.randn(2, 4)
    for model in (first, second):
        copied = copy.deepcopy(model)
        assert identical(copied(x), model(x))
    baechi.restore(second)
    assert identical(first(x), copy.deepcopy(first)(x))
    del model, copied, first  # not restored, but gone: it holds nothing any more
    gc.collect()
    baechi.restore(baechi.distribute(second, x, cluster=baechi.Cluster.virtual(2), placer="random:0"))
    assert "forward" not in vars(SHARED)
