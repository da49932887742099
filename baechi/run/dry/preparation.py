"""The process around a dry run: what would get in its way, and what it must not leave behind."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from baechi.backend import suspended
from baechi.backend.processes import alone
from baechi.gc_pause import only_new_ones
from baechi.torchlib.autocast import autocast_everywhere
from baechi.torchlib.fakes.argument_checks import checks_as_kernels_do
from baechi.torchlib.fakes.at_work import fakes_at_work
from baechi.torchlib.fakes.gpu_kernels import kernels_of_gpus
from baechi.torchlib.fakes.kernels import memory_left_unfilled
from baechi.torchlib.fakes.survivors import collect_survivors, spoil_survivors
from baechi.torchlib.host_memory import large_memory_apart
from baechi.torchlib.modules.as_found import left_as_found


@contextmanager
def prepared_for_dry_run(model: nn.Module, *, gpus: bool) -> Iterator[None]:
    """Prepare the process for a dry run, and put back all that it changes."""
    with ExitStack() as stack:
        stack.callback(spoil_survivors)  # last, with the whole heap in sight
        stack.callback(torch.clear_autocast_cache)  # it would keep valueless casts of weights
        stack.enter_context(alone())
        stack.enter_context(suspended())  # the caller's emulated cluster: emulations do not nest
        stack.enter_context(only_new_ones())  # faster: the garbage collector skips all earlier objects
        stack.callback(collect_survivors)
        stack.enter_context(left_as_found(model, contents="no parameters"))
        stack.enter_context(fakes_at_work())  # torch logs shape functions that refuse arguments as errors
        stack.enter_context(checks_as_kernels_do())
        stack.enter_context(memory_left_unfilled())
        stack.enter_context(large_memory_apart())
        stack.enter_context(
            autocast_everywhere()
        )  # tensors are on the CPU: an accelerator's autocast must act
        if gpus:
            stack.enter_context(kernels_of_gpus())
        yield
