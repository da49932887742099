"""What users give for a plan, an optimizer and compiling, in several forms. Nothing here needs torch."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from baechi.cost.optimizers import optimizer_costs, row_of
from baechi.errors import PlanError
from baechi.records.files import holds
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.replicas import Replicas
from baechi.records.stages import Stages

if TYPE_CHECKING:
    import torch

    Optimizer = str | torch.optim.Optimizer | None
else:
    Optimizer = Any  # torch is imported by those who have an optimizer

logger = logging.getLogger(__name__)

PlanLike = Plan | str | Path

Compile = Literal["regions", "stages", "auto"] | Stages | Mapping[str, Any]
"""What is compiled: repeated blocks (a mapping has arguments of `torch.compile`), or the whole step."""

Outputs = Literal["inputs", "device"]
"""Where what a model returns goes: to where its inputs lie, or nowhere, on the device that made it."""


def read_plan(plan: PlanLike) -> Plan:
    """A plan, or the one in a file."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, (str, Path)):
        return Plan.load(plan)
    raise TypeError(
        f"plan is of type {type(plan).__name__}: it takes a baechi.Plan or the path of a plan's file"
    )


def check_graph(graph: LayerGraph) -> None:
    """Refuse what is no layer graph, such as the path of one."""
    if not isinstance(graph, LayerGraph):
        raise TypeError(
            f"graph is of type {type(graph).__name__}: it takes a baechi.LayerGraph, as profile makes it and "
            "baechi.LayerGraph.load(path) reads it"
        )


_Given = TypeVar("_Given")


def opened(plan: _Given) -> _Given | Pipeline:
    """What was given, or the pipeline in the file that was given; plans are read where they are used."""
    if isinstance(plan, Replicas) or (isinstance(plan, (str, Path)) and holds(Replicas.record_kind, plan)):
        raise PlanError(
            "these are several replicas, each in a process of its own: each distributes the pipeline of one "
            "(plan=Replicas.load(file).pipeline), and DistributedDataParallel adds up the gradients"
        )
    if isinstance(plan, (str, Path)) and holds(Pipeline.record_kind, plan):
        return Pipeline.load(plan)
    return plan


def check_microbatches(microbatches: object) -> None:
    """Raise if a number of microbatches is none."""
    if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
        raise ValueError(f"microbatches is {microbatches!r}: a whole number of at least 1")


def check_outputs(outputs: str | None) -> None:
    """Raise if a choice of where outputs go is none."""
    if outputs not in (None, "inputs", "device"):
        raise ValueError(
            f"outputs is {outputs!r}: it takes 'inputs' (they go to where the inputs lie) or 'device' "
            "(each stays on the device that made it)"
        )


def check_switches(**switches: object) -> None:
    """Raise if a switch is neither on nor off."""
    for name, value in switches.items():
        may_be_none = name in ("training", "verbose")
        if not isinstance(value, bool) and not (value is None and may_be_none):
            raise ValueError(f"{name} is {value!r}: it takes True or False{', or None' * may_be_none}")


def check_recompute(recompute: object, modules: Iterable[str], model: str) -> None:
    """Raise if what is to run again is no module of a model."""
    if recompute is None or recompute == "auto":
        return
    if not isinstance(recompute, Iterable):
        raise ValueError(
            f"recompute is {recompute!r}: it takes 'auto', or names of modules that run again in backward"
        )
    if not isinstance(recompute, Collection):
        return  # an iterator can be read once
    known = dict.fromkeys(modules)
    for name in [recompute] if isinstance(recompute, str) else recompute:
        if not name or name not in known:
            close = get_close_matches(str(name), known, n=len(known)) or known
            some = [one for one in known if one and one in close][:3]
            raise ValueError(
                f"recompute names {name!r}, which is no module of this {model}: name blocks, such as "
                f"{', '.join(some)}"
            )


def check_reorder(reorder: object) -> None:
    """Raise if a way to launch layers is none."""
    if not isinstance(reorder, bool) and reorder not in ("auto", "host", "threads"):
        raise ValueError(f"reorder is {reorder!r}: it takes 'auto', True, False or 'threads'")


def with_outputs(plan: Plan, outputs: Outputs | None) -> Plan:
    """A plan whose outputs go where a user says; its timeline is simulated again if that is new."""
    if outputs is None or (outputs == "device") == plan.graph.outputs_stay:
        return plan
    return replace(plan, graph=plan.graph.noted(outputs=outputs), dry=None)


def name_of(optimizer: Optimizer) -> str | None:
    """The name under which an optimizer's state is counted."""
    if optimizer is None or isinstance(optimizer, str):
        optimizer_costs(optimizer)
        return optimizer
    groups, kind = getattr(optimizer, "param_groups", None), type(optimizer).__name__
    if isinstance(optimizer, type) or groups is None:
        what = optimizer.__name__ if isinstance(optimizer, type) else f"a {kind}"
        raise TypeError(f"optimizer is {what}: it takes a name such as 'adam', or a torch.optim.Optimizer")
    name = row_of(kind, groups)
    if name is None:
        logger.warning("%s: its state is counted as Adam's, two values per weight", kind)
    return name or "adam"


def instance_of(optimizer: Optimizer) -> "torch.optim.Optimizer | None":
    """The optimizer, if it is more than a name."""
    made: Any = optimizer if hasattr(optimizer, "param_groups") else None
    return made  # type: ignore[no-any-return]


def check_owner(optimizer: Optimizer, parameters: Iterable[Any], model: str) -> None:
    """Raise if an optimizer trains nothing of a model."""
    made = instance_of(optimizer)
    if made is None:
        return
    own = {id(parameter) for parameter in parameters}
    trained = [parameter for group in made.param_groups for parameter in group["params"]]
    if trained and not any(id(parameter) in own for parameter in trained):
        raise ValueError(
            f"the {type(made).__name__} trains none of the parameters of this {model}: it is one of "
            "another model, or was made before the parameters were replaced; make it of model.parameters()"
        )


def tell_unused(optimizer: Optimizer, *, training: bool) -> None:
    """Say that an optimizer counts nothing, where memory is that of inference."""
    if optimizer is not None and not training:
        logger.warning(
            "optimizer=%r counts nothing: memory is that of inference, since the model is in evaluation mode "
            "or was profiled in it; say training=True, or call model.train() first",
            name_of(optimizer),
        )


def compile_options(compile: Compile | None) -> Mapping[str, Any] | None:
    """What `torch.compile` is to be given for repeated blocks; None to compile none."""
    if isinstance(compile, Mapping):
        import torch  # a model is there, and so is torch

        taken = list(signature(torch.compile).parameters)[1:]
        if unknown := [name for name in compile if name not in taken]:
            raise ValueError(f"compile has {unknown[0]!r}: torch.compile takes {', '.join(taken)}")
        backend = compile.get("backend")
        known = torch.compiler.list_backends(()) if isinstance(backend, str) else []
        if isinstance(backend, str) and backend not in known:
            raise ValueError(f"compile has the backend {backend!r}: here are {', '.join(known)}")
        return compile
    return {} if compile == "regions" else None


def stages_of(compile: Compile | None) -> Stages | None:
    """How the whole step is to be compiled; None if it is not."""
    if compile is None or compile == "regions" or isinstance(compile, Mapping):
        return None
    if isinstance(compile, Stages):
        return compile
    if compile in ("stages", "auto"):
        return Stages(required=compile == "stages")
    raise ValueError(
        f"compile is {compile!r}: it takes 'regions', 'stages', 'auto', baechi.Stages(...), or a dict of "
        "arguments of torch.compile"
    )


def refuse_apart_again(recompute: object) -> None:
    """Raise if modules run again in backward while that of weights is apart."""
    if recompute is not None:
        raise ValueError(
            "weights_apart and recompute do not go together: what runs again for gradients of inputs would "
            "run once more for those of weights"
        )
