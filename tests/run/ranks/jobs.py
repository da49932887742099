"""What ranks are asked to do; the same functions run in the test's own process, alone."""

import copy
import io
import os
from collections.abc import Callable
from typing import Any

import torch
from run.ranks.models import Masked, Towers, built, words
from torch import Tensor, nn

import baechi
from baechi.records.pipeline import Pipeline
from baechi.torchlib.elsewhere import ElsewhereTensor

EXACT = baechi.Stages(backend="aot_eager")


def trained(name: str, text: str, evaluates: bool = False, *, steps: int = 3) -> dict[str, Any]:
    """Train a model by a plan: losses, norms, and the weights that are here."""
    model, batch = built(name)
    pipeline = Pipeline.from_json(text)
    data = [batch() for _ in range(steps)]
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    objects = list(map(id, model.parameters()))
    baechi.distribute(
        model,
        data[0],
        plan=pipeline,
        optimizer=optimizer,
        loss_weights="rows",
        coupled="accept",
        compile=EXACT,
    )
    torch.manual_seed(7)
    losses, norms = [], []
    for inputs in data:
        optimizer.zero_grad()
        result = model(**inputs)
        loss = result["loss"] if isinstance(result, dict) else result
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        losses.append(loss.item())
    if evaluates:
        model.eval()
        with torch.no_grad():
            result = model(**data[0])
        losses.append((result["loss"] if isinstance(result, dict) else result).item())
    assert list(map(id, model.parameters())) == objects
    here = {key: one for key, one in model.state_dict().items() if not isinstance(one, ElsewhereTensor)}
    return {
        "losses": losses,
        "norms": norms,
        "weights": {key: one.detach().clone() for key, one in here.items()},
        "states": len(optimizer.state),
        "drawn": torch.rand(1).item(),
    }


def looped(text: str, what: str) -> dict[str, Any]:
    """Train a model in a loop that is otherwise than usual."""
    torch.manual_seed(0)
    model = Masked().double()
    data = [{"x": words(), "y": words()} for _ in range(3)]
    data[0]["y"].clamp_(min=1)  # that zeros do not count is seen in the second batch
    if what == "frozen":
        for name, weight in model.named_parameters():
            weight.requires_grad_(name.startswith("head"))
    if what == "fewer rows":
        data[1] = {key: one[:6] for key, one in data[1].items()}
    groups = [{"params": [one]} for one in model.parameters()]
    optimizer = torch.optim.SGD(groups, 0.1, momentum=0.9, foreach=what == "foreach")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    baechi.distribute(model, data[0], plan=Pipeline.from_json(text), optimizer=optimizer, compile=EXACT)
    seen, before = [], copy.deepcopy(model.state_dict())
    for number, inputs in enumerate(data):
        if what != "accumulated" or number != 1:
            optimizer.zero_grad(set_to_none=what != "zeros")
        with torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast"):
            loss = model(**inputs)
        (loss * 0.5).backward()
        seen.append(loss.item())
        if what != "accumulated" or number:
            backwards = list(model.parameters())[::-1]
            lists = {"foreach": True} if what == "foreach" else {}
            seen.append(nn.utils.clip_grad_norm_(backwards, 0.3, norm_type=3, **lists).item())
            optimizer.step()
            schedule.step()
    if what == "kept":
        model.load_state_dict(before)
        seen.append(model.eval()(**data[0]).item())
        for weight in model.parameters():
            weight.grad.nan_to_num_()
    grads = {name: one.grad is not None for name, one in model.named_parameters()}
    here = {key: one for key, one in model.state_dict().items() if not isinstance(one, ElsewhereTensor)}
    return {"seen": seen, "grads": grads, "weights": {key: one.detach().clone() for key, one in here.items()}}


class Scores(nn.Module):
    """A number for each row, beside the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.last(self.first(x).relu()).squeeze(1)
        return (found - y).square().mean(), found


def with_a_microbatch_of_one_row() -> tuple[float, list[float] | None]:
    """The loss of three rows in two microbatches, and the scores where they lie."""
    torch.manual_seed(0)
    x, y = torch.randn(4, 8), torch.randn(4)
    model = baechi.distribute(Scores(), (x, y), microbatches=2, device_map={"first": 0, "": 1})
    with torch.no_grad():
        loss, scores = model(x[:3], y[:3])
    assert scores.shape == (3,)
    return loss.item(), None if isinstance(scores, ElsewhereTensor) else scores.tolist()


def loaded(path: str, text: str) -> dict[str, Any]:
    """Train a model that has no values before it is loaded."""
    _, batch = built("towers")
    with torch.device("meta"):
        model = Towers().double()
    torch.manual_seed(0)
    data, optimizer = batch(), torch.optim.SGD(model.parameters(), 0.1)
    baechi.distribute(
        model, data, plan=Pipeline.from_json(text), loss_weights="rows", optimizer=optimizer, compile=EXACT
    )
    baechi.load(model, path)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(**data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    here = [one for one in model.parameters() if not isinstance(one, ElsewhereTensor)]
    return {"losses": losses, "bytes": sum(one.untyped_storage().nbytes() for one in here)}


def placed_at_random(model: nn.Module, batch: dict[str, Any], devices: int, number: int, order: str) -> str:
    """A plan whose layers lie at random."""
    cluster = baechi.Cluster.virtual(devices, memory="1GiB")
    graph = baechi.profile(model, batch, cluster=cluster, source="estimate", microbatches=number)
    plan = baechi.place(graph, cluster, "random:1")
    return baechi.pipeline(plan, number, order).to_json()  # type: ignore[arg-type]


def pipeline_of(
    name: str, devices: int, number: int, order: str, *, apart: bool = False, again: str | None = None
) -> str:
    """A plan whose layers lie at random; those of modules that run again, together."""
    model, batch = built(name)
    cluster = baechi.Cluster.virtual(devices, memory="1GiB")
    graph = baechi.profile(
        model, batch(), cluster=cluster, source="estimate", microbatches=number, weights_apart=apart
    )
    plan = baechi.place(graph, cluster, "random:1", recompute=again)
    return baechi.pipeline(plan, number, order).to_json()  # type: ignore[arg-type]


def distributed(name: str, text: str, steps: int = 1) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A model over ranks, and batches."""
    model, batch = built(name)
    data = [batch() for _ in range(steps)]
    baechi.distribute(model, data[0], plan=Pipeline.from_json(text), loss_weights="rows", coupled="accept")
    return model, data


def different(what: str, text: str) -> Any:
    """Let rank 1 be different from rank 0."""
    model, batch = built("towers")
    inputs = batch()
    other = os.environ.get("RANK") == "1"
    torch.manual_seed(5 if other and what == "seed" else 0)
    if other and what == "weight":
        model.head = nn.Linear(16, 12).double()
    if other and what == "class":
        model.left[0].norm = nn.Identity()
    if other and what == "batch":
        inputs["x"] = inputs["x"][:6]
    version = baechi.__version__
    baechi.__version__ = "0.0" if other and what == "version" else version
    try:
        baechi.distribute(
            model,
            inputs,
            plan=Pipeline.from_json(text),
            loss_weights="sum" if other and what == "argument" else "rows",
        )
    finally:
        baechi.__version__ = version
    if other and what == "rows":
        inputs = {key: one[:8] for key, one in inputs.items()}
    if other and what == "labels":
        inputs["y"] = (inputs["y"] + 1) % 11
    return model(**inputs).item()


def elsewhere(text: str) -> dict[str, str]:
    """What a weight of another rank says, by what is asked of it."""
    model, data = distributed("tied", text)
    model(**data[0])["loss"].backward()
    (weight, *_) = [one for one in model.parameters() if isinstance(one, ElsewhereTensor)]
    logits = model(**data[0])["logits"]
    adam = torch.optim.Adam(model.parameters())
    adam.step()
    adam.load_state_dict(copy.deepcopy(adam.state_dict()))
    adam.step()
    questions: dict[str, Callable[[], Any]] = {
        "sum": lambda: weight.sum(),
        "item": lambda: weight.detach().reshape(-1)[0].item(),
        "file": lambda: torch.save(model.state_dict(), io.BytesIO()),
        "copy": lambda: copy.deepcopy(model),
        "norm": lambda: weight.grad.norm(),
        "drawn": lambda: nn.init.zeros_(weight) is not nn.init.normal_(weight),
        "own norm": lambda: torch.stack([one.grad.norm() for one in model.parameters()]),
        "logits": lambda: logits.argmax(-1) if isinstance(logits, ElsewhereTensor) else weight.sum(),
        "restore": lambda: baechi.restore(model),
        "states": lambda: torch.save(adam.state_dict(), io.BytesIO()),
        "closure": lambda: adam.step(lambda: model(**data[0])["loss"]),
    }
    found = {}
    for name, ask in questions.items():
        try:
            found[name] = f"returned {ask()!r}"
        except baechi.RankError as error:
            found[name] = str(error)
    return found


def gradients_elsewhere(text: str) -> tuple[int, int]:
    """How many gradients lie elsewhere after a step, and how many of them are made anew by the next one."""
    model, data = distributed("towers", text)
    kept: list[list[torch.Tensor]] = []
    for _ in range(3):
        model.zero_grad()
        model(**data[0]).backward()
        grads = [weight.grad for weight in model.parameters()]
        kept.append([grad for grad in grads if isinstance(grad, ElsewhereTensor)])
    return len(kept[1]), sum(one is not other for one, other in zip(*kept[1:], strict=True))


def failing(text: str, rank: int) -> Any:
    """Let one rank fail in the second step, in a hook of a weight."""
    model, data = distributed("towers", text, 2)
    here = torch.distributed.get_rank() == rank
    model(**data[0]).backward()
    if here:

        def refuse(*_: Any) -> None:
            raise ValueError("no such token")

        from baechi.run.ranks.loop import RankLoop

        RankLoop._keep = refuse  # type: ignore[method-assign]
    model(**data[1]).backward()


def after_an_error(text: str) -> Any:
    """Call the model again after a step that failed on rank 1."""
    try:
        failing(text, 1)
    except (ValueError, baechi.RankError):
        pass
    model, batch = built("towers")
    baechi.distribute(model, batch(), plan=Pipeline.from_json(text), loss_weights="rows")


class Deciding(nn.Module):
    """A model that decides by values, which no program can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if hidden.sum() > 0:
            hidden = -hidden
        return self.second(hidden).square().mean()


class Keeping(nn.Sequential):
    """A model whose code keeps a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        self.last = made.detach()
        return made.square().mean()


def refused(what: str) -> Any:
    """Ask for what does not go over ranks."""
    torch.manual_seed(0)
    model, x = Deciding(), torch.randn(4, 4)
    places = {"first": 0, "second": 1}
    if what == "values":
        baechi.distribute(model, x, device_map=places)
        return model(x)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if what == "no loss":
        baechi.distribute(plain, x, device_map={"0": 0, "1": 1}, microbatches=2)
        return plain(x)
    if what == "kept":
        keeping = Keeping(*plain)
        baechi.distribute(keeping, x, device_map={"0": 0, "1": 1})
        return keeping(x)
    if what == "input gradient":
        baechi.distribute(plain, x, device_map={"0": 0, "1": 1})
        return plain(x.requires_grad_())
    arguments: dict[str, dict[str, Any]] = {
        "auto": {"microbatches": "auto"},
        "regions": {"compile": "regions"},
        "outputs": {"outputs": "device"},
    }
    return baechi.distribute(plain, x, **arguments[what])


def unsplit_and_whole(text: str) -> list[float]:
    """A step in microbatches, one whole, and one in evaluation, of one model."""
    model, batch = built("drops")
    data = batch()
    baechi.distribute(model, data, plan=Pipeline.from_json(text), compile=EXACT)
    torch.manual_seed(3)
    losses = [model(**data).item()]
    with baechi.unsplit(model):
        loss = model(**data)
        loss.backward()
        losses.append(loss.item())
    norms = nn.utils.get_total_norm([one.grad for one in model.parameters()])
    losses += [norms.item(), model.eval()(**data).item()]
    return [*losses, torch.rand(1).item()]


def planned_here() -> tuple[float, list[str]]:
    """Give no plan: rank 0 makes one, runs it dry, and all take it."""
    model, batch = built("towers")
    data = batch()
    kept = model(**data)  # its graph holds weights that go to other ranks
    baechi.distribute(model, data, placer="even", microbatches=2)
    del kept
    return model(**data).item(), sorted(set(baechi.plan_of(model).to_device_map().values()))


def lengths() -> list[float]:
    """Train with batches of ten lengths, in one process with as many kinds of calls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    kinds = None if "RANK" in os.environ else baechi.Stages(backend="aot_eager", limit=20)

    def loss_of(made: Tensor, target: Tensor) -> Tensor:
        return (made - target).square().mean()

    baechi.distribute(
        model,
        torch.ones(2, 1, 4, dtype=torch.float64),
        device_map={"0": 0, "1": 1},
        microbatches=2,
        loss=loss_of,
        compile=kinds,
    )
    losses = []
    for length in range(2, 12):
        x = torch.randn(2, length, 4, dtype=torch.float64)
        loss = model(x, target=x)
        loss.backward()
        losses.append(loss.item())
    return losses
