"""A training loop as it was: the call runs the schedule, `backward()` hands the gradients over."""

import copy
import pickle
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import Blocks, noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import baechi
from baechi.errors import BaechiError

X, Y = noise(7, 6), noise(7, 6, seed=2)


def gpt2() -> nn.Module:
    config = GPT2Config(
        n_layer=3, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1, eos_token_id=1
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return GPT2LMHeadModel(config)


def t5() -> nn.Module:
    config = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=50, dropout_rate=0.0)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


@pytest.mark.full
def test_five_steps_with_ignored_labels() -> None:
    """AdamW on GPT-2 and T5: as the whole batch, though a mean of means would be another loss."""
    ids = torch.randint(3, 50, (6, 9), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, 3:] = labels[4, 2:] = -100
    for build, where, tolerance in (  # GPT-2 computes its loss in single precision
        (gpt2, {"transformer": 0, "transformer.h.1": 1, "transformer.h.2": 1, "lm_head": 0}, 1e-6),
        (t5, {"": 0, "decoder": 1}, 1e-9),
    ):
        model = seeded(build)
        plain = copy.deepcopy(model)
        optimizers = [torch.optim.AdamW(one.parameters(), 1e-2) for one in (model, plain)]
        batch = {"input_ids": ids, "labels": labels}
        cluster = pipelined(model, batch, optimizer=optimizers[0], device_map=where)
        with cluster:
            for _ in range(5):
                losses = [one(**batch).loss for one in (model, plain)]
                for optimizer, loss in zip(optimizers, losses, strict=True):
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                assert torch.allclose(*losses, rtol=1e-6)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=tolerance)


def both(**options: Any) -> tuple[nn.Module, nn.Module, baechi.Cluster]:
    """A pipelined model, the plain one, and the cluster."""
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    return model, plain, pipelined(model, (X, Y), **options)


def test_outputs_and_gradients() -> None:
    """The loss and the joined outputs; gradients times the incoming one, added to those that are there."""
    model, plain, cluster = both()
    with cluster:
        for _ in range(2):
            result, expected = model(X, Y), plain(X, Y)
            (result["loss"] * 3).backward()
            (expected["loss"] * 3).backward()
    assert torch.allclose(result["loss"], expected["loss"])
    assert torch.allclose(result["result"], expected["result"])
    assert_same_gradients(model, plain)


def test_zero_grad_on_either_side_of_the_call() -> None:
    """Gradients wait apart from those that are there."""
    model, plain, cluster = both()
    plain(X, Y)["loss"].backward()
    with cluster:
        model(X, Y)["loss"].backward()
        loss = model(X, Y)["loss"]
        model.zero_grad()
        loss.backward()
    assert_same_gradients(model, plain)


def test_hooks_of_weights_run_once() -> None:
    """At `backward()`, with the whole gradient: tensor hooks and those after the gradient is added."""
    model, plain, cluster = both()
    seen: list[Tensor] = []
    weight = model.get_parameter("b.weight")
    weight.register_hook(seen.append)
    weight.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor))
    plain(X, Y)["loss"].backward()
    with cluster:
        loss = model(X, Y)["loss"]
        assert not seen
        loss.backward()
    assert len(seen) == 2 and torch.allclose(seen[0], plain.get_parameter("b.weight").grad)  # type: ignore[arg-type]
    assert seen[1] is weight


def test_what_backward_refuses() -> None:
    """A second backward, as torch; another output of a step that ran its schedule, with the cure."""
    model, _, cluster = both()
    with cluster:
        result = model(X, Y)
        result["loss"].backward()
        with pytest.raises(RuntimeError, match="second time"):
            result["loss"].backward()
        with pytest.raises(BaechiError, match="loss=fn"):
            model(X, Y)["result"].sum().backward()


@pytest.mark.parametrize("order", ["auto", "gpipe", "1f1b"])
def test_without_a_loss_the_call_fills_and_backward_drains(order: str) -> None:
    """Outputs are joined along the batch; inputs get their gradients, too."""
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    cluster = pipelined(model, X, order=order)
    given, own = X.clone().requires_grad_(), X.clone().requires_grad_()
    with cluster:
        result, expected = model(given), plain(own)
        assert torch.allclose(result, expected, rtol=1e-12)  # rows of a part may round otherwise
        F.mse_loss(result, Y).backward()
    F.mse_loss(expected, Y).backward()
    assert_same_gradients(model, plain)
    assert given.grad is not None and own.grad is not None and torch.allclose(given.grad, own.grad)


def test_a_loss_function() -> None:
    """`loss=` with the call's target; inputs get gradients; without a target the outputs come."""
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    cluster = pipelined(model, {"x": X, "target": Y}, loss=F.mse_loss)
    given, own = X.clone().requires_grad_(), X.clone().requires_grad_()
    with cluster:
        loss = model(given, target=Y)
        loss.backward()
        outputs = model(X)
    expected = F.mse_loss(plain(own), Y)
    expected.backward()
    assert torch.allclose(loss, expected) and torch.allclose(outputs, plain(X), rtol=1e-12)
    assert_same_gradients(model, plain)
    assert given.grad is not None and own.grad is not None and torch.allclose(given.grad, own.grad)


def test_evaluation() -> None:
    """Without gradients: outputs of the whole batch, and the loss."""
    model, plain, cluster = both()
    with cluster, torch.no_grad():
        result, expected = model.eval()(X, Y), plain.eval()(X, Y)
    assert torch.allclose(result["result"], expected["result"], rtol=1e-12)
    assert not result["loss"].requires_grad
    assert torch.allclose(result["loss"], expected["loss"])


class Draws(Blocks):
    """Noise behind each layer, in evaluation too."""

    def __init__(self, *, draws: bool = True) -> None:
        super().__init__()
        self.draws = draws

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        for layer in (self.a, self.b, self.c, self.d):
            x = F.dropout(layer(x), 0.5, training=self.draws)
        return x


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_each_microbatch_draws_from_its_own_seed(mode: str, order: str) -> None:
    """The seeds are one draw of the caller's generator; the next call draws others."""
    model = seeded(Draws)
    plain = copy.deepcopy(model)
    cluster = pipelined(model, (X,), order=order)
    getattr(model, mode)()
    torch.manual_seed(5)
    with cluster, torch.no_grad():
        first, second = model(X), model(X)
    torch.manual_seed(5)
    for made in (first, second):
        seeds = torch.randint(2**62, (3,)).tolist()
        after = torch.get_rng_state()
        parts = []
        for part, seed in zip(X.tensor_split(3), seeds, strict=True):
            torch.manual_seed(seed)
            parts.append(plain(part))
        assert torch.equal(made, torch.cat(parts))
        torch.set_rng_state(after)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_model_that_draws_nothing_leaves_the_generator(mode: str) -> None:
    """As the plain model does: what the caller draws next is the same."""
    model = seeded(lambda: Draws(draws=False))
    cluster = pipelined(model, (X,))
    getattr(model, mode)()
    before = torch.get_rng_state()
    with cluster:
        result = model(X)
        result.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_clipping_accumulation_and_none() -> None:
    """Two calls a step, clipped; gradients set to None between."""
    model, plain, cluster = both()
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, plain)]
    with cluster:
        for _ in range(2):
            for one, optimizer in zip((model, plain), optimizers, strict=True):
                optimizer.zero_grad(set_to_none=True)
                (one(X, Y)["loss"] / 2).backward()
                (one(Y, X)["loss"] / 2).backward()
                nn.utils.clip_grad_norm_(one.parameters(), 0.1)
                optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_bfloat16_autocast() -> None:
    """The lanes run under the caller's autocast: as the loop does."""
    model, plain, cluster = both(loss_weights="rows")
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(X, Y)["loss"]
        with cluster:
            loss = model(X, Y)["loss"]
            loss.backward()
    assert torch.allclose(loss.double(), expected.double(), rtol=2e-2)
    assert all(weight.grad is not None for weight in model.parameters())


def test_half_precision_is_refused() -> None:
    """A `GradScaler` would come too late."""
    model, _, cluster = both()
    with cluster, torch.autocast("cpu", torch.float16), pytest.raises(BaechiError, match="GradScaler"):
        model(X, Y)


def test_copies_and_restoring() -> None:
    """A deep copy and a pickle run in microbatches, too; restored, the model is plain."""
    model, plain, cluster = both()
    expected = plain(X, Y)["loss"]
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with cluster:
            assert torch.allclose(one(X, Y)["loss"], expected)
            assert baechi.last_step(one).counters["microbatches"] == 3
    baechi.restore(model)
    assert torch.equal(model(X, Y)["loss"], expected)


def test_mistakes() -> None:
    """What does not go together is told before anything happens."""
    for options, text in (
        ({"microbatches": 0}, "at least 1"),
        ({"microbatches": 2, "loss_weights": "all"}, "loss_weights"),
        ({"loss": F.mse_loss}, "go with microbatches"),
        ({"microbatches": 9}, "7 rows"),
    ):
        with pytest.raises(ValueError, match=text):
            baechi.distribute(seeded(Blocks), (X, Y), cluster=baechi.Cluster.virtual(2), **options)
