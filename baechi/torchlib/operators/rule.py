"""A row of the table: everything peculiar about one operator, or one torch function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that a kernel keeps for its backward, in an amount that only the kernel knows.

    Args:
        result: position of the workspace among the results.
        batched: positions of the arguments that have a batch, as last dimension but one.
    """

    result: int
    batched: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Everything peculiar about an operator or a torch function. The defaults say: nothing is.

    The first two are about both operators and functions. The next group is about operators, which
    the dispatcher calls: it adds to what schemas and tags say. The last group is about functions,
    which a model's code calls.

    Args:
        writes: names of arguments that it writes in place, where no schema and no version says so.
        views: whether its results are views of its first argument, where no schema says so.

        computes: whether it launches a kernel if its results are no views.
        fresh: whether it hands out what `torch.tensor` has just made, which has no earlier alias.
        unfilled: whether its result has no defined values.
        new_memory: whether it gives its first argument the memory of another tensor.
        resizes: whether it changes how much memory its first argument has.
        copies: position of the tensor that it copies, from any device to any other.
        lists: whether it takes lists of tensors that may lie on several devices.
        masks: position of indices; the host waits for the result only if one of them is a mask.
        reads_result_only: whether it reads as many bytes of its first input as it returns, not all of it.
        flops: its floating-point operations, from its arguments.
        heavy: whether its arithmetic is not in proportion to its bytes, though no formula counts it.
        random: when it draws from the default generator, where torch's tag says that it may.
        layout: where its shape function lays its first result, and others of its shape, out in another way
            than its kernel: the positions of the arguments that it lies like, as a sum of them would; none
            if it is contiguous.
        memory_format: position of the argument whose memory format its first result has, channels last or
            contiguous, where its shape function keeps other strides, too.
        room_of: position of the argument whose bytes its result's memory has, though it shows fewer.
        undefined_without: by position of a result, the argument without which its kernel leaves it undefined,
            where its shape function returns an empty tensor: the argument's position, and its default.
        asked_for: position of the flags that say which results are asked for, where its shape function makes
            others, too.
        keeps_strides: whether its kernel, given one tensor and numbers, keeps all strides, also those of
            dimensions of one element, which its shape function sets anew.
        spare: position of a result whose memory has room for one more element than it shows, if not empty.
        unreduced: whether its result, if that is one number, keeps the memory of what was reduced.
        sized_by: positions of the arguments whose values say how large its results are: lengths, as tensors
            or as plain numbers.
        nests: whether its result is a nested tensor.
        workspace: the memory for its backward that only its kernel knows.
        becomes_grad: whether autograd calls it on the gradient that becomes a parameter's `grad`.

        writes_first: whether it writes its first argument in place, where its name does not end in "_".
        query: whether it launches nothing, so that it is no operation of the step.
        answers: how code asks a tensor that waits, which answers without being computed: as an
            attribute, as a method, or as a method and a function of torch.
        keeps_arguments: whether it must get the very tensors that the code gave it, and no copies.
        leaves: whether its result leaves the devices, so that it needs values.
        needs_values: whether its result cannot be inferred from shapes.
        moves: whether its result may lie elsewhere than where it runs.
        takes_device: whether it moves a tensor if it is given a device.
        shaped_like: whether its other arguments say a shape only, and may lie on any device.
    """

    writes: tuple[str, ...] = ()
    views: bool = False

    computes: bool = True
    fresh: bool = False
    unfilled: bool = False
    new_memory: bool = False
    resizes: bool = False
    copies: int | None = None
    lists: bool = False
    masks: int | None = None
    reads_result_only: bool = False
    flops: Callable[..., int] | None = None
    heavy: bool = False
    random: Literal["as tagged", "never", "if dropout"] = "as tagged"
    layout: tuple[int, ...] | None = None
    memory_format: int | None = None
    room_of: int | None = None
    undefined_without: Mapping[int, tuple[int, bool]] | None = None
    asked_for: int | None = None
    keeps_strides: bool = False
    spare: int | None = None
    unreduced: bool = False
    sized_by: tuple[int, ...] | None = None
    nests: bool = False
    workspace: Workspace | None = None
    becomes_grad: bool = False

    writes_first: bool = False
    query: bool = False
    answers: Literal["", "attribute", "method", "function"] = ""
    keeps_arguments: bool = False
    leaves: bool = False
    needs_values: bool = False
    moves: bool = False
    takes_device: bool = False
    shaped_like: bool = False
