"""Layers of unusual kinds, called."""

import torch
from run.two import Two, same_on_two_devices
from torch import nn


def test_scripted_layers() -> None:
    """The class of a script module has no `forward` that could be looked up."""

    def build() -> nn.Module:
        return Two(lambda m, x: m.b(m.script(m.a(x))), script=torch.jit.script(nn.Linear(4, 4)))

    same_on_two_devices(build)


def test_running_statistics_of_a_module_in_a_plain_list() -> None:
    """`batch_norm` writes its statistics and no version says so: those of a module that is not
    registered lie on the host, and the update went to a copy."""

    def build() -> nn.Module:
        return Two(lambda m, x: m.b(m.norms[0](m.a(x))) + m.norms[0].running_mean, norms=[nn.BatchNorm1d(4)])

    same_on_two_devices(build, steps=3)
