"""Split layers among what else is done with a model: checkpointing, threads, compilers, libraries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from run.split.split_layers import (
    TOLERANCE,
    Tied,
    assert_same,
    split_on,
    tied_on_devices,
    twins,
    words,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.errors import ShardedTensorError

SPEC = baechi.BatchSpec({"out": 14}, device_matrix=[0, 1, 2])


class Checkpointed(Tied):
    """Its head runs again in backward."""

    def late(self, hidden: torch.Tensor) -> Any:
        return self.head(torch.relu(self.middle(hidden)))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        logits = checkpoint(self.late, hidden, use_reentrant=self.reentrant)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    reentrant = False


class Reentrant(Checkpointed):
    reentrant = True


@pytest.mark.parametrize("build", [Checkpointed, Reentrant])
def test_checkpointing(build: Callable[[], nn.Module]) -> None:
    """Shards that run again in backward give the same gradients."""
    model, plain = twins(build)
    inputs = (words(2, 5), words(2, 5))
    with split_on(3, model, inputs, {"head": SPEC}):
        model(*inputs).backward()
    plain(*inputs).backward()
    assert_same(model, plain)


@pytest.mark.parametrize("reorder", [False, "threads"])
def test_launching(reorder: Any) -> None:
    """In the code's order, and by threads."""
    model, plain, cluster, inputs = tied_on_devices(reorder=reorder)
    with cluster:
        model(*inputs).backward()
    plain(*inputs).backward()
    assert_same(model, plain)


def test_inference_and_autocast() -> None:
    """Without gradients, and in a lower precision."""
    model, plain, cluster, inputs = tied_on_devices()
    with cluster, torch.inference_mode():
        assert model(*inputs).item() == pytest.approx(plain(*inputs).item(), abs=TOLERANCE)
    losses = []
    for network in (model.float(), plain.float()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses.append(network(*inputs))
        losses[-1].backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-5)
    assert torch.allclose(model.head.weight.grad.cpu(), plain.head.weight.grad, atol=2e-3)


def test_compiled_code_keeps_gradients() -> None:
    """Compiled code that uses the weight runs as it was written: its gradient is not lost."""
    model, _, _, _ = tied_on_devices()
    weight, other = model.head.weight, nn.Parameter(torch.ones(3, dtype=torch.float64))
    double: Any = torch.compile(lambda w, o: (w * 2).sum() + o.sum(), backend="eager")
    double(weight, other).backward()
    assert weight.grad.cpu().unique().tolist() == [2.0]


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


GPT2_CHAINS: dict[str, Any] = {
    "transformer.h.0.mlp.c_fc": 3, "transformer.h.0.mlp.c_proj": {"in": 3},
    "transformer.h.0.attn.c_attn": [baechi.BatchSpec({"out": 8}), baechi.BatchSpec({"out": 4}, [0, 2])],
    "transformer.h.0.attn.c_proj": {"in": 2},
}  # fmt: skip
LLAMA_CHAINS: dict[str, Any] = {
    "model.layers.0.mlp.gate_proj": 3, "model.layers.0.mlp.up_proj": 3,
    "model.layers.0.mlp.down_proj": {"in": 3},
    **{f"model.layers.0.self_attn.{name}_proj": 2 for name in "qkv"},
    "model.layers.0.self_attn.o_proj": {"in": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("build", "chains", "attention"),
    [(gpt2, GPT2_CHAINS, "GPT2Attention"), (llama, LLAMA_CHAINS, "LlamaAttention")],
)
def test_a_library_s_model(
    build: Callable[[], Any], chains: dict[str, Any], attention: str, tmp_path: Path
) -> None:
    """GPT-2's and Llama's own code, tied, with an MLP and heads whose hidden values stay sharded: trains,
    generates with a cache, and `save_pretrained` is a plain call."""
    model, plain = twins(build)
    ids = words(2, 6, below=97)
    batch = {"input_ids": ids, "labels": ids}
    spec = baechi.BatchSpec({"out": 33}, device_matrix=[0, 1, 2])
    model.save_pretrained(tmp_path / "before")
    with split_on(3, model, batch, {"lm_head": spec, **chains}, split_module_classes=[attention]):
        graph = baechi.plan_of(model).graph
        joins = [name for name in chains if f"{name}[join]" in graph]
        assert joins == [name for name, how in chains.items() if isinstance(how, dict)]
        for network in (model, plain):
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            network.train()(**batch).loss.backward()
            optimizer.step()
        assert_same(model, plain, tolerance=1e-6)  # the library's loss is float32
        made = model.eval().generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    expected = plain.eval().generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(made.cpu(), expected)
    for folder, more in (("plain", {}), ("given", {"state_dict": model.state_dict()})):
        model.save_pretrained(tmp_path / folder, **more)
        again = type(model).from_pretrained(tmp_path / folder, dtype=torch.float64)
        for name, value in model.state_dict().items():
            assert torch.equal(value.cpu(), again.state_dict()[name]), name
        assert again.lm_head.weight is again.get_input_embeddings().weight
    sizes = [sum(f.stat().st_size for f in (tmp_path / d).glob("*.safetensors")) for d in ("before", "plain")]
    assert sizes[0] == sizes[1]
    assert model.lm_head.weight is model.get_input_embeddings().weight
    baechi.load(model, tmp_path / "before")
    for name, value in type(model).from_pretrained(tmp_path / "before").state_dict().items():
        assert torch.equal(value, model.state_dict()[name].cpu()), name


def _replace(model: Any, inputs: Any) -> None:
    torch.func.functional_call(model, {"head.weight": torch.zeros(41, 6, dtype=torch.float64)}, inputs)


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "replaced by a whole tensor": _replace,
    "weight norm": lambda model, inputs: nn.utils.parametrizations.weight_norm(model.head)(torch.zeros(6)),
    "pruning": lambda model, inputs: torch.nn.utils.prune.l1_unstructured(model.head, "weight", 0.3),
    "export": lambda model, inputs: torch.export.export(model, inputs),
    "gradients of functions": lambda model, inputs: torch.func.grad(
        lambda weights: torch.func.functional_call(model, weights, inputs)
    )(dict(model.named_parameters())),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    """What would lose a gradient, or gather the weight, raises."""
    model, _, _, inputs = tied_on_devices()
    with pytest.raises(ShardedTensorError):
        REFUSED[what](model, inputs)


class Aliased(Tied):
    """The weight and the bias of its head have names in modules that do not run, as in T5 and BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 41)
        self.head.weight = self.embed.weight
        self.shared, self.predictions = nn.Embedding(41, 6), nn.Module()
        self.shared.weight = self.embed.weight
        self.predictions.bias = self.head.bias


def test_names_in_modules_that_do_not_run() -> None:
    """They are names of the one Parameter, which is cut; checkpoints have all of them."""
    model, plain = twins(Aliased)
    inputs = (words(2, 5), words(2, 5))
    with pytest.raises(baechi.PlanError, match="its weight is that of embed; name that"):
        split_on(3, model, inputs, {"shared": 3})
    with split_on(3, model, inputs, {"head": 3}):
        model(*inputs).backward()
    plain(*inputs).backward()
    assert_same(model, plain)
    assert model.shared.weight is model.head.weight and len(model.predictions.bias.shards) == 3
    assert list(model.state_dict()) == list(plain.state_dict())
    baechi.restore(model)
    assert_same(model, plain)


class Transposes(Tied):
    """It reads the weight of its embedding in a product."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = torch.relu(self.middle(self.embed(ids))) @ self.embed.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_a_weight_that_other_code_reads() -> None:
    """Where an op has the weight that no shards replace, splitting is refused, or the first call is."""

    class Untied(Transposes):
        def __init__(self) -> None:
            super().__init__()
            del self.head

    inputs = (words(2, 5), words(2, 5))
    for build in (Transposes, Untied):
        with pytest.raises(ShardedTensorError, match="leave its layer out of split="):
            model = twins(build)[0]
            with split_on(2, model, inputs, {"embed": 2}):
                model(*inputs)

    class Before(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(nn.functional.linear(x, self.layer.weight))
            return made

    with pytest.raises(baechi.PlanError, match="glue:/linear#0 reads its weight"):
        split_on(2, twins(Before)[0], torch.ones(2, 6, dtype=torch.float64), {"layer": 2})


class Sometimes(nn.Module):
    """It calls a layer of another module for large values only, and is one layer, since it reads a weight."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.scale, self.shared = nn.Parameter(torch.ones(6)), shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.scale.diag()
        return self.shared(x).sin() if x.detach().abs().max() > 10 else x


class Calls(nn.Module):
    """A layer, and another one that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(6, 6)
        self.block = Sometimes(self.shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.block(self.shared(x))
        return made.square().mean()


def test_a_layer_that_another_one_calls() -> None:
    """Where capture has not seen it, its shards run where those of the weight lie, all the same."""
    model, plain = twins(Calls)
    x = torch.rand(3, 6, dtype=torch.float64)
    spec = baechi.BatchSpec({"out": 2}, device_matrix=[0, 1, 2])
    cluster = split_on(3, model, x, {"shared": spec}, source="estimate")
    assert "block" in baechi.plan_of(model).graph
    for factor in (1, 100):
        with cluster:
            model(x * factor).backward()
        plain(x * factor).backward()
    assert_same(model, plain)
