"""The backward of a watched run: it runs, and each operation of it is written down."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from baechi.capture.watch.trace import BackwardOp
from baechi.capture.watch.watched_run import Watch
from baechi.torchlib.autograd_nodes import node_of, nodes_from
from baechi.torchlib.losses import losses_among
from baechi.torchlib.operators.facts import bytes_of, facts_of, flat, flops_of, is_kernel, writes_of
from baechi.torchlib.private.autograd import current_autograd_node, sequence_number
from baechi.torchlib.tensors.pytree import tensors_in

logger = logging.getLogger(__name__)


def run_backward(watch: Watch, model: nn.Module, given: Any, result: Any) -> None:
    """Run backward, and write down what it does; no gradient is put anywhere.

    It begins where training would: at losses, else at all outputs.
    """
    leaves = [t for t in (*model.parameters(), *tensors_in(given)) if t.requires_grad and t.is_leaf]
    losses = losses_among(result)
    watch.trace.losses = {use.object for use in watch.uses(losses)}
    leaves += _made_by_code(losses, leaves)
    if not losses or not leaves:
        return
    watch.trace.backward = []
    _note_ends(watch, losses)
    weights = [leaf for leaf in model.parameters() if leaf.requires_grad and leaf.is_leaf]
    handles = [weight.register_hook(partial(_laid_out_as, weight)) for weight in weights]
    try:
        ones = [torch.ones_like(loss) for loss in losses]
        gradients = torch.autograd.grad(losses, leaves, ones, allow_unused=True)
    except Exception as error:  # a custom backward failed on fake tensors: costs are then estimated
        logger.info("backward is estimated from forward: it does not run here (%s)", error)
        watch.trace.backward = None
        return
    finally:
        for handle in handles:
            handle.remove()
    made = [(grad, weight) for grad, weight in zip(gradients, weights, strict=False) if grad is not None]
    watch.trace.gradients = {watch.storage_of(grad).index for grad, _ in made}
    reached = {watch.storage_of(weight).index for _, weight in made}
    for storage in watch.trace.weights.values():
        storage.trained = storage.index in reached


def _made_by_code(losses: Iterable[torch.Tensor], known: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Other leaves that get a gradient: the model's code may ask for that of a view of an input."""
    ids = {id(leaf) for leaf in known}
    nodes = nodes_from([node_of(loss) for loss in losses])
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    return [leaf for leaf in leaves if id(leaf) not in ids]


def _laid_out_as(weight: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor | None:
    """A weight keeps its gradient in its own layout: one in another is copied, as `AccumulateGrad` does."""
    if gradient.layout != torch.strided:
        return None
    strides = zip(weight.shape, gradient.stride(), weight.stride(), strict=True)
    if all(own != 0 if size == 1 else own == kept for size, own, kept in strides):
        return None
    return gradient.new_empty_strided(weight.size(), weight.stride()).copy_(gradient)


def _note_ends(watch: Watch, losses: Iterable[torch.Tensor]) -> None:
    """Let each node say when it is done: what autograd still runs in its name adds gradients up."""

    def noting(number: int, takers: Sequence[int]) -> Callable[..., None]:
        def note(made: Sequence[torch.Tensor | None], given: object) -> None:
            shapes = [None if gradient is None else gradient.shape for gradient in made]
            watch.done = number, tuple(zip(shapes, takers, strict=False))

        return note

    for node in nodes_from([node_of(loss) for loss in losses]):
        takers = [-1 if taker is None else sequence_number(taker) for taker, _ in node.next_functions]
        node.register_hook(noting(sequence_number(node), takers))


def note_backward(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation of the backward, and write it down."""
    facts = facts_of(func)
    result = func(*args, **kwargs)
    if func.namespace == "prim":  # a query, such as `prim.device`: no work
        return result
    given, made = flat([*args, *kwargs.values()]), flat([result])
    watch.note_operator(func, facts, given)
    if facts.aliases and given:
        storage = watch.storage_of(given[0])
        for tensor in made:
            watch.alias(tensor, storage)
        return result
    known = {id(watch.storage_of(tensor)) for tensor in given}
    makes = tuple([s for s in map(watch.storage_of, made) if id(s) not in known])
    writing = list(writes_of(facts, args, kwargs))
    if not makes and not writing:
        return result
    node = current_autograd_node()
    backward = watch.trace.backward
    assert backward is not None
    sequence = -1 if node is None else sequence_number(node)
    backward.append(
        BackwardOp(
            sequence=sequence,
            takers=_takers(watch, sequence, made),
            makes=makes,
            flops=flops_of(func, args, kwargs, result),
            moved_bytes=bytes_of(facts, given, made or writing),
            kernel=is_kernel(func, args, kwargs),
            host_work=watch.host_work(),
            again=watch.checkpointed() > 0,
        )
    )
    return result


def _takers(watch: Watch, sequence: int, made: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """If a node is done already, the nodes that may take the sum which autograd makes in its name."""
    done, gradients = watch.done
    if done != sequence or not made:
        return ()
    return tuple([taker for shape, taker in gradients if shape == made[0].shape])
