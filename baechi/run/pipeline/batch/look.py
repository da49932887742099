"""What a model gives for a batch, and for its parts, without gradients; looking changes nothing of the model.

weights     that are all equal (zeros, ones) are something else: a head of zeros hides what it weighs
modules     torch's dropouts and batch norms are in evaluation, all else as it is
numbers     as precise as is cheap; no autocast
draws       the rows of a part get what they got in the whole batch (`draws`)
"""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import accumulate
from types import CellType
from typing import Any

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.errors import UNSPLIT_CURE, BaechiError
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.caller_objects import handed_kept
from baechi.run.pipeline.batch.draws import Draws
from baechi.run.pipeline.batch.hidden_writes import HiddenWrites
from baechi.run.pipeline.batch.written_weights import WrittenWeights
from baechi.run.state.thread_as_found import left_as_before
from baechi.torchlib.autocast import autocast_types
from baechi.torchlib.fakes.valueless import is_valueless
from baechi.torchlib.modules.as_found import Keeper, left_as_found
from baechi.torchlib.modules.tables import content_of, has_changed, items_of, refill
from baechi.torchlib.private.kernels import full_precision
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.private.modules import (
    buffer_table,
    forward_hooks,
    forward_pre_hooks,
    parameter_table,
    renew_flat_weights,
)
from baechi.torchlib.private.tensors import write_count
from baechi.torchlib.private.transforms import is_wrapped
from baechi.torchlib.shards.tensor import ShardedTensor, plain_parts
from baechi.torchlib.tensors.layout import real_device
from baechi.torchlib.tensors.pytree import map_tensors

CallWhole = Callable[[Inputs], Any]
"""Calls the model with a batch as it is; the result has the loss."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

_OTHER_IN_TRAINING = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *_NORMS,
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.RReLU, nn.RNNBase, nn.MultiheadAttention),
)
"""Modules of torch that draw random numbers in training only, or normalize over the rows of a batch."""

_LEAST, _SHIFT, _FACTOR = 1e-2, 0.05, 0.1
"""A constant below the first is shifted by up to the second, a larger one scaled by up to the third."""


class Way(Enum):
    """How a model is set for a look.

    Attributes:
        EVALUATION: all of it in evaluation.
        STILL: its own code as it is, and torch's modules that draw, or couple rows, in evaluation.
    """

    EVALUATION = "evaluation"
    STILL = "still"


@dataclass(frozen=True)
class Setting:
    """How a model is set, and computes, for a look.

    Args:
        way: how its modules are set.
        precise: whether numbers are as precise as is cheap where the model lies.
        perturbed: by which random numbers weights that are all equal are something else; 0 for none.
        casts: whether the caller's autocast is on.
        noted: whether draws are noted, and how precise numbers are.
    """

    way: Way
    precise: bool
    perturbed: int
    casts: bool = False
    noted: bool = True


@dataclass(frozen=True)
class Seen:
    """What a model gave for a batch.

    Args:
        whole: what it returned for the rows together.
        parts: what it returned for each part of them.
        strange: whether it drew random numbers that tell nothing of rows, so that the two cannot be compared.
        unit: the largest unit in the last place, near 1, of what it computed.
        buffers: those that the parts left otherwise than the whole.
        writers: modules that wrote their buffers, and those that stood still.
    """

    whole: Any
    parts: list[Any]
    strange: bool
    unit: float
    buffers: tuple[str, ...]
    writers: frozenset[str]


class HooksRegistered(Exception):
    """The code of a model registered hooks in a look."""


_CAPTURE = "transformers.utils.output_capturing"


def is_from_capture(message: str) -> bool:
    """Whether a message tells a line of the code by which models of transformers install those hooks."""
    return str(getattr(sys.modules.get(_CAPTURE), "__file__", None) or _CAPTURE) in message


def capture_installed(model: nn.Module) -> bool:
    """Let transformers install the hooks by which its models record hidden states and attentions, once.

    Its models do so in the first call that asks for them, and note it in an attribute. Of that each
    microbatch has its own.
    """
    room = sys.modules.get(_CAPTURE)
    install = getattr(room, "maybe_install_capturing_hooks", None)
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if install is None or kind is None:
        return False
    models = [module for module in model.modules() if isinstance(module, kind)]
    waiting = [one for one in models if not getattr(one, "_output_capturing_hooks_installed", False)]
    for one in waiting:
        install(one)
    return bool(waiting)


@dataclass(frozen=True)
class Looker:
    """What is needed to look at a model.

    Args:
        model: the model.
        call: calls it.
        backend: the devices; None if the model computes where its inputs lie.
    """

    model: nn.Module
    call: CallWhole
    backend: AbstractBackend | None

    def seen(self, setting: Setting, whole: Inputs, parts: Sequence[Inputs], rows: Sequence[int]) -> Seen:
        """What the model gives for a batch and its parts, which follow each other as microbatches do."""
        model, draws = self.model, Draws()
        modules = list(model.modules())
        hooks = _hooks(modules)

        def run(inputs: Inputs) -> Any:
            given = change(_cloned(inputs))
            hidden = HiddenWrites(model, self._at)
            try:
                with draws if setting.noted else nullcontext(), hidden:
                    result = left_as_before(
                        partial(self.call, given)
                    )  # a look that fails does not end the step
            finally:
                written = hidden.put_back()
            if written:
                raise BaechiError(
                    f"{written[0]} is written through .data in forward, which torch does not count: each "
                    "microbatch would write it, unseen. Write it without .data, under torch.no_grad(), or "
                    f"{UNSPLIT_CURE}"
                )
            if _hooks(modules) != hooks:
                raise HooksRegistered
            return result

        with self.set_as(setting) as change:
            with self._kept() as keeper, handed_kept(whole):
                before, foreign = _counts(model), _foreign_states(keeper)
                together = run(whole)
                left, strange = _written(model, before), foreign != _foreign_states(keeper)
            results = []
            with self._kept():
                before = _counts(model)
                for first, count, part in zip(accumulate(rows, initial=0), rows, parts, strict=False):
                    draws.part(first, count, sum(rows))
                    with left_as_found(model, contents="none"), handed_kept(part):
                        results.append(run(part))
                        tables = [dict(buffer_table(module)) for module in modules]
                    for module, table in zip(modules, tables, strict=True):  # microbatches share buffers
                        buffer_table(module).update(table)
                left_by_parts = _written(model, before)
            draws.end()
        others = tuple(_others(left, left_by_parts))
        unit = draws.unit if setting.noted else _unit_of(model)
        still = [name for name, module in model.named_modules() if isinstance(module, _OTHER_IN_TRAINING)]
        writers = frozenset([*still, *(name.rpartition(".")[0] for name in {*left, *left_by_parts})])
        return Seen(together, results, strange or draws.are_strange, unit, others, writers)

    @contextmanager
    def _kept(self) -> Iterator[Keeper]:
        """Within this context the model's code may write; afterwards all is as it was."""
        weights = WrittenWeights(self.model, self._at)
        with left_as_found(self.model, contents="none") as keeper, _contents_kept(keeper), weights:
            yield keeper

    @contextmanager
    def set_as(self, setting: Setting) -> Iterator[Callable[[Inputs], Inputs]]:
        """Within this context the model is set for looks; afterwards all is as it was, to the bit."""
        model = self.model
        with torch.no_grad(), left_as_found(model, contents="none"), ExitStack() as stack:
            stack.enter_context(_hooks_kept(model))
            for module in model.modules():
                if setting.way is Way.EVALUATION or isinstance(module, _OTHER_IN_TRAINING):
                    module.training = False
            if not setting.casts:
                for kind in autocast_types():
                    if torch.is_autocast_enabled(kind):
                        stack.enter_context(torch.autocast(kind, enabled=False))
                if torch.accelerator.is_available():
                    stack.enter_context(full_precision())
            change = self._made_precise() if setting.precise else _same
            if setting.perturbed:
                stack.enter_context(self._perturbed(setting.perturbed))
            yield change

    def _made_precise(self) -> Callable[[Inputs], Inputs]:
        """Put precise copies in the place of weights and buffers; returns what does it with inputs."""
        made: dict[int, torch.Tensor] = {}
        for module in self.model.modules():
            for table in (parameter_table(module), buffer_table(module)):
                for name, tensor in table.items():
                    if tensor is not None and id(tensor) not in made:
                        with self._at(tensor):
                            made[id(tensor)] = _precise(tensor)
                    if tensor is not None:
                        table[name] = made[id(tensor)]
            if isinstance(module, nn.RNNBase):
                renew_flat_weights(module)

        def change(inputs: Inputs) -> Inputs:
            args, kwargs = map_tensors(_precise, (inputs.args, inputs.kwargs))
            return Inputs(*args, **kwargs)

        return change

    def unit(self) -> float:
        """The unit in the last place of what the model computes, as it is."""
        return _unit_of(self.model)

    def has_flat_weights(self) -> bool:
        """Whether a matrix of weights is all equal, as a head of zeros is: a look says little of its rows."""
        for shard in self._trained():
            with self._at(shard):
                if shard.dim() > 1 and is_even(shard):
                    return True
        return False

    def _trained(self) -> Iterator[torch.Tensor]:
        """The plain tensors that are trained; of a sharded weight, these."""
        for weight in self.model.parameters():
            for shard in plain_parts(weight):
                if weight.requires_grad and _is_plain(shard):
                    yield shard

    @contextmanager
    def _perturbed(self, seed: int) -> Iterator[None]:
        """Within this context, weights that are all equal are not; nor are zeros and ones among others."""
        saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            try:
                chance = torch.Generator().manual_seed(seed)
                for shard in self._trained():
                    with self._at(shard), without_dispatch_modes():
                        _perturb(shard.data, saved, chance)
                yield
            finally:
                self._put_back(saved)
        finally:  # an exception of a signal's handler may have come in the line above
            self._put_back(saved)

    def _put_back(self, saved: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for data, before in reversed(saved):
            with self._at(data), without_dispatch_modes():
                data.copy_(before)

    def _at(self, tensor: torch.Tensor) -> AbstractContextManager[object]:
        if self.backend is None:
            return nullcontext()
        return self.backend.at(self.backend.place_of(tensor), "")


def _unit_of(model: nn.Module) -> float:
    """The unit in the last place of a model's weights; of 32 bits at least, since models cast inside."""
    dtypes = {weight.dtype for weight in model.parameters() if weight.is_floating_point()} | {torch.float32}
    return max(torch.finfo(dtype).eps for dtype in dtypes)


def _same(inputs: Inputs) -> Inputs:
    return inputs


def is_even(tensor: torch.Tensor) -> bool:
    """Whether all entries of a tensor are the same; it has some, and lies where this computes."""
    with torch.no_grad(), without_dispatch_modes():
        return bool((tensor == tensor.reshape(-1)[0]).all())


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and not (tensor.is_meta or is_wrapped(tensor))
    return plain and tensor.is_floating_point() and tensor.numel() > 0 and not is_valueless(tensor)


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as precise as is cheap: in 64 bits on a CPU, in 32 elsewhere; itself if it is."""
    if not _is_plain(tensor) or isinstance(tensor, ShardedTensor):
        return tensor
    precise = torch.float64 if real_device(tensor).type == "cpu" else torch.float32
    if torch.finfo(tensor.dtype).bits >= torch.finfo(precise).bits:
        return tensor
    made = tensor.detach().to(precise)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _perturb(
    data: torch.Tensor, saved: list[tuple[torch.Tensor, torch.Tensor]], chance: torch.Generator
) -> None:
    """Change what is equal in a weight, and note what it was."""
    special = data == data.reshape(-1)[0]
    if not bool(special.all()):
        special = (data == 0) | (data == 1)
        if not bool(special.any()):
            return
    noise = torch.rand(data.shape, generator=chance, dtype=torch.float64) / 2 + 0.5
    if data.numel() > 1:
        noise *= torch.randint(2, data.shape, generator=chance) * 2 - 1
    noise = noise.to(data.device, data.dtype)
    saved.append((data, data.clone()))
    other = torch.where(data.abs() < _LEAST, data + noise * _SHIFT, data * (1 + noise * _FACTOR))
    data.copy_(torch.where(special, other, data))


@contextmanager
def _hooks_kept(model: nn.Module) -> Iterator[None]:
    """Put back what the user's hooks count and collect: they run in looks, too."""
    noted: dict[int, tuple[Any, Any]] = {}
    for module in model.modules():
        for hook in [*forward_hooks(module).values(), *forward_pre_hooks(module).values()]:
            owner, function = getattr(hook, "__self__", hook), getattr(hook, "__func__", hook)
            own = [] if isinstance(owner, nn.Module) else [getattr(owner, "__dict__", {})]
            for table in [*(getattr(function, "__closure__", None) or ()), *own]:
                for found in [table, *items_of(content_of(table))]:
                    if isinstance(found, (CellType, list, dict, set, deque)):
                        noted.setdefault(id(found), (found, content_of(found)))
    try:
        yield
    finally:
        for table, content in noted.values():
            if has_changed(table, content):
                refill(table, content)


def _hooks(modules: Sequence[nn.Module]) -> list[int]:
    """How many hooks each module has."""
    return [len(forward_hooks(module)) + len(forward_pre_hooks(module)) for module in modules]


def _counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """By buffer, which object it is, and how often it was written."""
    return {name: (id(one), write_count(one)) for name, one in _buffers(model).items()}


def _written(model: nn.Module, before: dict[str, tuple[int, int]]) -> dict[str, torch.Tensor]:
    """The buffers that are not as they were."""
    now = _buffers(model).items()
    with without_dispatch_modes():
        return {
            name: one.detach().clone() for name, one in now if before.get(name) != (id(one), write_count(one))
        }


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}".lstrip("."): value
        for name, module in model.named_modules()
        if not isinstance(module, _NORMS)
        for key, value in buffer_table(module).items()
        if value is not None and not value.is_inference()
    }


def _others(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> Iterator[str]:
    """The names of buffers that differ, by more than rounding."""
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a.shape != b.shape:
            yield name
        else:
            with without_dispatch_modes():
                if not torch.allclose(
                    a.double().cpu(), b.double().cpu(), rtol=1e-4, atol=1e-6, equal_nan=True
                ):
                    yield name


def _foreign_states(keeper: Keeper) -> list[str]:
    """The states of generators of Python and numpy, the model's own ones too: their draws are not noted."""
    states = [repr(random.getstate())]
    if numpy := sys.modules.get("numpy"):
        own = [one for one in keeper.seen.values() if isinstance(one, numpy.random.Generator)]
        states += [repr(numpy.random.get_state()), *[repr(one.bit_generator.state) for one in own]]
    own_of_python = [one for one in keeper.seen.values() if isinstance(one, random.Random)]
    return [*states, *[repr(one.getstate()) for one in own_of_python]]


def _cloned(inputs: Inputs) -> Inputs:
    """Copies, which the model's code may write in place."""
    args, kwargs = map_tensors(torch.clone, (inputs.args, inputs.kwargs))
    return Inputs(*args, **kwargs)


@contextmanager
def _contents_kept(keeper: Keeper) -> Iterator[None]:
    """Put back what the model's code writes in buffers, and in tensors of attributes: counts, say, in
    evaluation too. This takes no time of emulated devices."""
    with without_dispatch_modes():
        data = [
            tensor.data
            for tensor in keeper.seen.values()
            if isinstance(tensor, torch.Tensor)
            and not isinstance(tensor, nn.Parameter)
            and tensor.layout == torch.strided
            and not is_wrapped(tensor)
        ]
        before = [(one, one.clone()) for one in data if not (one.is_meta or is_valueless(one))]
    try:
        yield
    finally:
        with without_dispatch_modes():
            for one, content in before:
                if not torch.equal(one, content):
                    one.copy_(content)
