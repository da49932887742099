"""A case as a Python program of its own: what a failure prints."""

from .case import Verdict
from .render import rendered, whole_text

TAIL = """

# --- how it is run

from contextlib import nullcontext

import baechi


def batch(step):
    made = torch.Generator().manual_seed({thousand} + step)
    return tuple(torch.randn({rows}, 4, generator=made, dtype=torch.double) for _ in range(2))


def build():
    torch.manual_seed({seed})
    return Model().train({training})


def steps(model):
    left = {{}}
    for step in range(1, {steps} + 1):
        x, y = batch(step)
        if {copies}:
            x, y = copy.deepcopy((x, y))
        x.requires_grad_({training})
        before = x.device
        model.zero_grad()
        torch.manual_seed({seed} + step)
        with {mode}:
            out = model(x, y)
        values = out if isinstance(out, (tuple, list)) else vars(out).values() if hasattr(out, "h") else [out]
        values = [v for o in values for v in (o.values() if isinstance(o, dict) else [o])]
        values = [v for v in values if isinstance(v, Tensor)]
        loss = sum((v - {aim}).pow(2).mean() for v in values)
        if {training} and loss.requires_grad:
            loss.backward()
        for number, value in enumerate(values):
            left[f"{{step}} output {{number}}"] = value.detach().clone()
        for name, weight in [*model.named_parameters(), ("x", x)]:
            left[f"{{step}} gradient of {{name}}"] = None if weight.grad is None else weight.grad.clone()
        left[f"{{step}} input x"], left[f"{{step}} input y"] = x.detach().clone(), y.clone()
        for name, buffer in model.named_buffers():
            left[f"{{step}} buffer {{name}}"] = buffer.clone()
        print("x was on", before, "and is on", x.device, "- outputs on", [str(v.device) for v in values])
    return left


expected = steps(build())
graph = baechi.profile(build(), batch(0), cluster=baechi.Cluster.virtual(1), training={training})
cluster = baechi.Cluster.virtual({devices})
plan = baechi.place(graph, cluster, {placer!r})
print("in the plan's order:", {{name: plan.device_of[name] for name in plan.order}})
model = baechi.assign(build(), plan, reorder={reorder!r})
with cluster{outside}:
    found = steps(model)
for name, value in expected.items():
    other = found[name]
    if (value is None) != (other is None) or (value is not None and (value - other).abs().max() > 1e-9):
        print(name, "differs:", value, other)
"""


def program(verdict: Verdict) -> str:
    """The text of a program that shows a failure.

    Args:
        verdict: of the case.
    """
    recipe, way = verdict.case.recipe, verdict.case.way
    quick = way.caller == "inference" and not way.training
    mode = "torch.inference_mode()" if quick else f"torch.set_grad_enabled({way.training})"
    tail = TAIL.format(
        thousand=1000 * recipe.seed,
        rows=recipe.rows,
        seed=recipe.seed,
        training=way.training,
        steps=way.steps,
        copies=way.caller == "copies",
        aim="torch.ones(v.shape)" if way.caller == "target" else "0.0",
        mode=mode,
        devices=way.devices,
        placer=way.placer,
        reorder=way.reorder,
        outside="" if way.inside else " if False else nullcontext()",
    )
    return f'"""{verdict.failure}\n\n{way}\n"""\n\n{whole_text(rendered(recipe))}{tail}'
