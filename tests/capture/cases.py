"""Small models whose layer graphs are known by heart; `graphs.json` has the graph of each.

Every number in `graphs.json` was worked out from the definitions: floats take 4 bytes, indices 8; a
`Linear(4, 4)` has 80 bytes of weights (64 + 16) and makes 32 for a batch of two. What is surprising
about a case stands in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from baechi.records import Inputs

Made = tuple[nn.Module, list[Inputs]]

BOTH = (True, False)


@dataclass(frozen=True)
class Case:
    """A model, calls of it, and how it is captured.

    Args:
        name: what is hard about it.
        make: builds the model and its example inputs; several of them give the union.
        training: whether the graph is that of training.
        whole: what the user keeps whole.
    """

    name: str
    make: Callable[[], Made]
    training: bool
    whole: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether its graph is the union of several."""
        return self.name.startswith("the_union_")

    @property
    def key(self) -> str:
        """Its key in `graphs.json`."""
        return f"{self.name}, {'training' if self.training else 'inference'}"


CASES: list[Case] = []


def case(
    *modes: bool, whole: tuple[str, ...] = ()
) -> Callable[[Callable[[], tuple[Any, ...]]], Callable[[], tuple[Any, ...]]]:
    """Add a case: a function that returns a model and the arguments of one call."""

    def add(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
        def made() -> Made:
            model, *arguments = make()
            calls = [a for a in arguments if isinstance(a, Inputs)]
            return model, calls or [Inputs(*arguments)]

        for training in modes:
            CASES.append(Case(make.__name__, made, training, whole))
        return make

    return add


class Net(nn.Module):
    """A module whose forward is a function, over the layers and weights that it is given."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def linear(inputs: int = 4, outputs: int = 4) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def linears(names: str) -> dict[str, nn.Module]:
    return {name: nn.Linear(4, 4) for name in names}


def rows(*shape: int) -> Tensor:
    return torch.ones(shape or (2, 4))


# --- what is a layer ---------------------------------------------------------------------------


def attend(m: Any, x: Tensor) -> Tensor:
    weights = torch.softmax(m.q(x) @ m.k(x).transpose(1, 2), -1)
    out: Tensor = m.o(weights @ m.v(x))
    return out


class Attention(Net):
    def __init__(self) -> None:
        super().__init__(attend, **linears("qkvo"))


@case(*BOTH)
def attention_is_whole() -> tuple[Any, ...]:
    """Products are the attention's own work, and q, k and v are single layers: no branches.

    It keeps q, k, v and what o gets (96 each), and the weights (72).
    """
    parts = {"a": linear(), "attention": Attention(), "b": linear()}
    return Net(lambda m, x: m.b(m.attention(m.a(x))), **parts), rows(2, 3, 4)


@case(True)
def attention_of_the_root_is_decomposed() -> tuple[Any, ...]:
    """The root is never kept whole by itself: who distributes it wants it in pieces."""
    return Attention(), rows(2, 3, 4)


@case(False, whole=("Attention",))
def the_root_is_whole_if_the_user_says_so() -> tuple[Any, ...]:
    """One node has everything."""
    return Attention(), rows(2, 3, 4)


class Weighted(Net):
    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__(function, **parts)
        self.weight = nn.Parameter(torch.ones(4, 4))


@case(*BOTH)
def einsum_is_whole() -> tuple[Any, ...]:
    """A layer whose output an einsum multiplies with a weight of the module's own."""
    mixer = Weighted(lambda m, x: torch.einsum("bi,ij->bj", m.inner(x), m.weight), inner=linear())
    return Net(lambda m, x: m.a(m.mixer(x)), mixer=mixer, a=linear()), rows()


@case(True)
def a_bare_weight_in_a_composite_makes_it_whole() -> tuple[Any, ...]:
    """Light work, but on a weight of its own: there is one node that owns both."""
    scaled = Net(lambda m, x: m.inner(x) * m.scale, inner=linear(), scale=nn.Parameter(torch.ones(4)))
    return Net(lambda m, x: m.a(m.scaled(x)), scaled=scaled, a=linear()), rows()


def unroll(m: Any, x: Tensor) -> Tensor:
    hidden = x[:, 0]
    for step in range(3):
        hidden = m.cell(x[:, step], hidden)
    return hidden


@case(False)
def recurrence_over_one_cell_is_whole() -> tuple[Any, ...]:
    """Each call of the cell needs the one before."""
    loop = Net(unroll, cell=nn.RNNCell(4, 4))
    return Net(lambda m, x: m.a(m.loop(x)), loop=loop, a=linear()), rows(2, 3, 4)


@case(False)
def recurrence_in_the_root_is_decomposed() -> tuple[Any, ...]:
    """A node for each call, all in one group."""
    return Net(unroll, cell=nn.RNNCell(4, 4)), rows(2, 3, 4)


def pipeline(m: Any, x: Tensor) -> Tensor:
    for _ in range(2):
        x = m.c(m.b(m.a(x)))
    return x


@case(False)
def recurrence_over_three_cells_is_a_pipeline() -> tuple[Any, ...]:
    """The three could lie on three devices."""
    return Net(lambda m, x: m.cells(x), cells=Net(pipeline, **linears("abc"))), rows()


@case(False)
def recurrence_over_two_cells_is_whole() -> tuple[Any, ...]:
    """Two are no pipeline."""

    def twice(m: Any, x: Tensor) -> Tensor:
        for _ in range(2):
            x = m.b(m.a(x))
        return x

    return Net(lambda m, x: m.h(m.cells(x)), cells=Net(twice, **linears("ab")), h=linear()), rows()


@case(False)
def calls_that_need_not_each_other_are_no_recurrence() -> tuple[Any, ...]:
    """A layer that is called on two inputs; the module around it does light work only."""
    pair = Net(lambda m, x, y: m.a(x) + m.a(y), a=linear())
    return Net(lambda m, x: m.pair(m.b(x), m.c(x)), b=linear(), c=linear(), pair=pair), rows()


def towers(m: Any, x: Tensor) -> Tensor:
    one, other = m.a2(m.a1(m.a0(x))), m.b2(m.b1(m.b0(x)))
    joint: Tensor = one @ other.transpose(0, 1)
    return joint


@case(False)
def two_towers_with_a_heavy_joint_are_decomposed() -> tuple[Any, ...]:
    """Three layers in a row beside three others are branches, whatever joins them."""
    parts = {f"{tower}{level}": linear() for tower in "ab" for level in range(3)}
    return Net(lambda m, x: m.towers(x), towers=Net(towers, **parts)), rows()


@case(False)
def two_short_towers_with_a_heavy_joint_are_whole() -> tuple[Any, ...]:
    """Two layers in a row are no branch."""

    def short(m: Any, x: Tensor) -> Tensor:
        out: Tensor = m.b(m.a(x)) @ m.d(m.c(x)).transpose(0, 1)
        return out

    return Net(lambda m, x: m.towers(x), towers=Net(short, **linears("abcd"))), rows()


@case(False)
def many_layers_are_decomposed() -> tuple[Any, ...]:
    """A product of its own does not keep a module of nine layers whole."""

    def chain(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = layer(x)
        return x @ x.transpose(0, 1)

    nine = Net(chain, layers=nn.ModuleList([linear() for _ in range(9)]))
    return Net(lambda m, x: m.nine(x), nine=nine), rows()


@case(True)
def no_weights_is_whole() -> tuple[Any, ...]:
    """An activation and a scaling, in a module of their own: one layer."""
    light = nn.Sequential(nn.Tanh(), nn.Softmax(-1))
    return Net(lambda m, x: m.b(m.light(m.a(x))), a=linear(), light=light, b=linear()), rows()


def residual(m: Any, x: Tensor) -> Tensor:
    return x + m.second(torch.relu(m.first(x)))


@case(*BOTH)
def light_glue_is_decomposed() -> tuple[Any, ...]:
    """The sum lies with the newer of its two inputs, which are equally large."""
    return nn.Sequential(linear(), Net(residual, first=linear(), second=linear())), rows()


class Residual(Net):
    def __init__(self) -> None:
        super().__init__(residual, first=linear(), second=linear())


@case(*BOTH, whole=("Residual",))
def names_of_the_user_win() -> tuple[Any, ...]:
    """Kept whole for its name, though its work is light; both blocks do the same."""
    return nn.Sequential(Residual(), Residual()), rows()


@case(False)
def experts_are_decomposed() -> tuple[Any, ...]:
    """A router, and experts of two layers that are mixed: light work over two branches."""

    def mixed(m: Any, x: Tensor) -> Tensor:
        shares = m.router(x).softmax(-1)
        out: Tensor = m.one(x) * shares[:, :1] + m.other(x) * shares[:, 1:]
        return out

    experts = {name: nn.Sequential(linear(4, 8), nn.ReLU(), linear(8, 4)) for name in ("one", "other")}
    return Net(lambda m, x: m.moe(x), moe=Net(mixed, router=linear(4, 2), **experts)), rows()


@case(False)
def experts_that_are_chosen() -> tuple[Any, ...]:
    """Rows are gathered by value, so it runs with real ones; the expert that gets none is not run."""

    def routed(m: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for index, expert in enumerate(m.experts):
            (chosen,) = torch.where(x[:, 0] == index)
            if len(chosen):
                out.index_add_(0, chosen, expert(x[chosen]))
        return out

    model = Net(lambda m, x: routed(m, m.a(x)), a=nn.Identity(), experts=nn.ModuleList([linear(), linear()]))
    return model, rows()


@case(False)
def fused_attention_is_a_layer() -> tuple[Any, ...]:
    """Torch's own: its code reads the weights of its children behind their backs."""
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Net(lambda m, x: m.attention(x, x, x, need_weights=False)[0], attention=attention), rows(2, 3, 4)


@case(True)
def a_layer_that_reads_its_childs_weight() -> tuple[Any, ...]:
    """It calls no child: so it is a layer, not glue around one that never ran."""
    reads = Net(lambda m, x: F.linear(x, m.inner.weight), inner=linear())
    return Net(lambda m, x: m.a(m.reads(x)), reads=reads, a=linear()), rows()


@case(*BOTH)
def a_torch_encoder_layer_and_a_head() -> tuple[Any, ...]:
    """`nn.TransformerEncoderLayer` is whole, the stack around it is not."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(stack, linear()), rows(2, 3, 4)


class Scaled(torch.autograd.Function):
    """A product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradients[0] * scale, gradients[0] * x


# --- writes ------------------------------------------------------------------------------------


@case(*BOTH)
def layer_that_writes_in_place() -> tuple[Any, ...]:
    """It makes nothing, lies where what it writes lies, and follows who read it before."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        seen = m.reader(hidden)
        return m.b(m.relu(hidden)) + seen

    parts = {"relu": nn.ReLU(inplace=True)}
    return Net(forward, **linears("ab"), reader=nn.Softmax(-1), **parts), rows()


@case(*BOTH)
def glue_that_writes_in_place() -> tuple[Any, ...]:
    """`h += ..` goes on from the layer that made `h`, and whoever reads `h` comes after."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        hidden += m.b(x)
        return m.c(hidden)

    return Net(forward, **linears("abc")), rows()


@case(False)
def readers_before_and_after_a_write() -> tuple[Any, ...]:
    """Earlier readers hold the writer back, later ones read what it wrote, and the next writer
    waits for these."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        early = m.b(hidden)
        hidden.mul_(2)
        late = m.c(hidden)
        hidden.zero_()
        return early + late + m.d(hidden)

    return Net(forward, **linears("abcd")), rows()


@case(False)
def a_write_through_a_view() -> tuple[Any, ...]:
    """Half of it is written; whoever reads all of it reads what was written."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        hidden[:, :2].mul_(2)
        return m.b(hidden)

    return Net(forward, **linears("ab")), rows()


@case(False)
def a_view_whose_base_is_written() -> tuple[Any, ...]:
    """Who reads the view afterwards reads what was written; 16 bytes of the 32 travel."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        half = hidden[:, :2]
        hidden.add_(1)
        return m.b(half)

    return Net(forward, a=linear(), b=linear(2, 4)), rows()


@case(True)
def an_item_that_is_set() -> tuple[Any, ...]:
    """`h[:, 0] = ..` lies with `h`, whatever it is set to."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        hidden[:, 0] = m.b(x)[:, 1]
        return m.c(hidden)

    return Net(forward, **linears("abc")), rows()


class Buffered(Net):
    """With a buffer `seen`."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__(function, **parts)
        self.register_buffer("seen", torch.zeros(2, 4))


@case(True)
def a_copy_into_a_buffer() -> tuple[Any, ...]:
    """The buffer lies with who writes it first; who reads it afterwards reads what was copied."""

    def forward(m: Any, x: Tensor) -> Tensor:
        m.seen.copy_(m.a(x).detach())
        return m.b(x) + m.seen

    return Buffered(forward, **linears("ab")), rows()


@case(True)
def a_buffer_that_is_read_and_then_written() -> tuple[Any, ...]:
    """As an average over steps is."""

    def forward(m: Any, x: Tensor) -> Tensor:
        out: Tensor = m.a(x) + m.seen
        with torch.no_grad():
            m.seen.mul_(0.5)
        return out

    return Buffered(forward, a=linear()), rows()


@case(*BOTH)
def statistics_of_a_norm() -> tuple[Any, ...]:
    """They are its own business: nobody else's memory is written.

    Weights 2 x 16; buffers 2 x 16 and a counter of 8.
    """
    return nn.Sequential(linear(), nn.BatchNorm1d(4), linear()), rows()


@case(False)
def a_result_that_is_written_to_an_argument() -> tuple[Any, ...]:
    """`out=`: who makes the memory is not who fills it."""

    def forward(m: Any, x: Tensor) -> Tensor:
        one, other = m.a(x), m.b(x)
        early = m.c(one)
        torch.add(one, other, out=one)
        return m.d(one) + early

    return Net(forward, **linears("abcd")), rows()


@case(False)
def a_result_that_is_written_to_new_memory() -> tuple[Any, ...]:
    """Memory that is made of nothing has no place, until it is written: then it is the writer's."""

    def forward(m: Any, x: Tensor) -> Tensor:
        out = torch.empty(2, 4)
        torch.mul(m.a(x), m.b(x), out=out)
        return m.c(out)

    return Net(forward, **linears("abc")), rows()


@case(True)
def a_function_with_a_backward_of_its_own() -> tuple[Any, ...]:
    """All of its inputs lie together: what its backward reads cannot be brought there."""
    return Net(lambda m, x: m.c(Scaled.apply(m.a(x), m.b(x))), **linears("abc")), rows()


@case(False)
def an_input_that_is_written() -> tuple[Any, ...]:
    """It lies outside the model: nobody holds it, and readers keep their order."""

    def forward(m: Any, x: Tensor) -> Tensor:
        early = m.a(x)
        x.add_(1)
        return early + m.b(x)

    return Net(forward, **linears("ab")), rows()


# --- calls -------------------------------------------------------------------------------------


@case(*BOTH)
def a_layer_that_is_called_again() -> tuple[Any, ...]:
    """Two nodes in one group; the weights are those of the first, which comes last in backward, and
    holds another gradient and the sum."""
    return Net(lambda m, x: m.a(m.b(m.a(x))), **linears("ab")), rows()


@case(True)
def an_activation_that_all_layers_share() -> tuple[Any, ...]:
    """Its calls are one group."""
    return Net(lambda m, x: m.act(m.b(m.act(m.a(x)))), **linears("ab"), act=nn.Tanh()), rows()


@case(False)
def layers_in_reverse_order() -> tuple[Any, ...]:
    """Code order is that of the calls, not of the registration."""

    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in reversed(m.layers):
            x = layer(x)
        return x

    return Net(forward, layers=nn.ModuleList([linear(), linear(), linear()])), rows()


@case(False)
def layers_of_a_generator() -> tuple[Any, ...]:
    """What is run while the sum asks for it."""
    return Net(lambda m, x: torch.stack([layer(x) for layer in m.children()]).sum(0), **linears("ab")), rows()


@case(False)
def an_early_exit() -> tuple[Any, ...]:
    """The code looks at a value; what did not run takes memory, and no time."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden: Tensor = m.a(x)
        return m.exit(hidden) if x.sum() > 0 else m.exit(m.b(hidden))

    return Net(forward, **linears("ab"), exit=linear(4, 2)), rows()


@case(True)
def an_unused_layer_lies_with_its_sibling() -> tuple[Any, ...]:
    """With the layer that shares the longest path, not with the first of all."""
    block = Net(lambda m, x: m.used(x), idle=linear(4, 8), used=linear())
    return Net(lambda m, x: m.block(m.a(x)), a=linear(), block=block), rows()


def choice(m: Any, x: Tensor, wide: bool) -> Tensor:
    hidden = m.a(x)
    hidden = m.b(hidden) if wide else m.c(hidden)
    out: Tensor = m.d(hidden * 2)
    return out


@case(*BOTH)
def the_union_of_two_paths() -> tuple[Any, ...]:
    """Both branches and what joins them; the piece of glue behind each is its own."""
    return Net(choice, **linears("abcd")), Inputs(rows(), True), Inputs(rows(), False)


@case(False)
def the_union_of_two_paths_the_other_way_round() -> tuple[Any, ...]:
    """The first example decides on the order of the nodes."""
    return Net(choice, **linears("abcd")), Inputs(rows(), False), Inputs(rows(), True)


@case(False)
def the_union_of_two_orders() -> tuple[Any, ...]:
    """What would make a cycle is left out: the first order stays."""

    def forward(m: Any, x: Tensor, swap: bool) -> Tensor:
        out: Tensor = m.a(m.b(x)) if swap else m.b(m.a(x))
        return out

    return Net(forward, **linears("ab")), Inputs(rows(), False), Inputs(rows(), True)


@case(False)
def the_union_of_two_sizes() -> tuple[Any, ...]:
    """The larger amounts of the two."""
    return nn.Sequential(linear(), nn.ReLU()), Inputs(rows(2, 4)), Inputs(rows(5, 4))


@case(False)
def the_union_of_an_idle_and_a_busy_run() -> tuple[Any, ...]:
    """What one example leaves idle runs in the other: it is no longer bound to its sibling."""

    def forward(m: Any, x: Tensor, more: bool) -> Tensor:
        hidden: Tensor = m.a(x)
        return m.extra(hidden) if more else hidden

    return Net(forward, a=linear(), extra=linear(4, 2)), Inputs(rows(), False), Inputs(rows(), True)


# --- ties --------------------------------------------------------------------------------------


@case(*BOTH)
def tied_weights() -> tuple[Any, ...]:
    """One group; the bytes are the first one's, which has a second gradient and a sum to hold."""
    model = Net(lambda m, t: m.head(m.mid(m.embed(t))), embed=nn.Embedding(10, 4), mid=linear())
    model.head = nn.Linear(4, 10, bias=False)
    model.head.weight = model.embed.weight
    return model, torch.zeros(2, 3, dtype=torch.long)


@case(True)
def tied_views() -> tuple[Any, ...]:
    """Two weights that are views of one storage: it is counted once, and they lie together.

    By storage both have another gradient to hold, which is more than each takes.
    """
    both = torch.ones(2, 4, 4)
    model = Net(lambda m, x: m.c(m.b(m.a(x))), **linears("abc"))
    for layer, view in ((model.a, both[0]), (model.c, both[1])):
        layer.weight, layer.bias = nn.Parameter(view), None
    return model, rows()


@case(True)
def a_weight_that_glue_reads_too() -> tuple[Any, ...]:
    """Glue reads the layer's weight where the layer has it: the weight may travel."""
    return Net(lambda m, x: m.a(x) * m.a.bias + m.b(x), **linears("ab")), rows()


@case(True)
def a_weight_that_glue_reads_first() -> tuple[Any, ...]:
    """Then the layer joins it there."""
    return Net(lambda m, x: m.a(x * m.a.bias), a=linear()), rows()


@case(True)
def a_class_token() -> tuple[Any, ...]:
    """A parameter of the root belongs to the glue that reads it first."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(torch.cat([m.token.expand(2, 1, 4), m.a(x)], 1) + m.places)

    weights = {"token": nn.Parameter(torch.ones(1, 1, 4)), "places": nn.Parameter(torch.ones(4, 4))}
    return Net(forward, **linears("ab"), **weights), rows(2, 3, 4)


@case(True)
def a_weight_that_is_given_to_layers() -> tuple[Any, ...]:
    """A parameter of the root, passed to two layers: it lies with the first, and travels to the other."""
    give = {name: Net(lambda m, x, w: x * w) for name in "ab"}
    return Net(lambda m, x: m.b(m.a(x, m.w), m.w), w=nn.Parameter(torch.ones(4)), **give), rows()


@case(True)
def a_module_under_two_names() -> tuple[Any, ...]:
    """One module registered twice goes by its first name."""
    layer = linear()
    return Net(lambda m, x: m.second(m.first(x)), first=layer, second=layer), rows()


@case(False)
def a_shared_buffer() -> tuple[Any, ...]:
    """Two layers that have the same buffer lie together; its bytes are the first one's."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return x + m.seen

    one, other = Buffered(forward), Buffered(forward)
    other.seen = one.seen
    return Net(lambda m, x: m.b(m.a(m.one(x))) + m.other(x), one=one, **linears("ab"), other=other), rows()


@case(*BOTH)
def a_weight_that_is_computed() -> tuple[Any, ...]:
    """Weight normalization happens inside the layer: 16 for the lengths, 64 for the directions."""
    return nn.Sequential(weight_norm(linear()), linear()), rows()


@case(True)
def a_spectral_norm() -> tuple[Any, ...]:
    """Its buffers are written in training: its own business."""
    return nn.Sequential(spectral_norm(linear()), linear()), rows()


@case(True)
def a_frozen_part() -> tuple[Any, ...]:
    """No gradients of its weights; what it makes needs none, and is not kept but by who needs it."""
    frozen = nn.Sequential(linear(), nn.Tanh()).requires_grad_(False)
    return nn.Sequential(frozen, linear(), nn.Tanh()), rows()


@case(True)
def a_frozen_layer_in_between() -> tuple[Any, ...]:
    """Gradients pass through it; it keeps no input, for it has no gradient of its own to compute."""
    model = nn.Sequential(linear(), linear(), linear())
    model[1].requires_grad_(False)
    return model, rows()


# --- values ------------------------------------------------------------------------------------


@dataclass
class Pair:
    """Two tensors and a name."""

    left: Tensor
    right: Tensor
    name: str = "pair"


class Named(NamedTuple):
    """A tensor and what may be none."""

    value: Tensor
    other: Tensor | None


@case(True)
def a_dataclass() -> tuple[Any, ...]:
    """What a layer returns in one is found, and what the next one gets."""
    pair = Net(lambda m, x: Pair(x * 2, x.exp()))
    use = Net(lambda m, p: p.left + p.right)
    return Net(lambda m, x: m.use(m.pair(m.a(x))), a=linear(), pair=pair, use=use), rows()


@case(True)
def a_named_tuple() -> tuple[Any, ...]:
    """With a tensor and a None in it."""
    pair = Net(lambda m, x: Named(x.exp(), None))
    use = Net(lambda m, p: p.value * 2)
    return Net(lambda m, x: m.use(m.pair(m.a(x))), a=linear(), pair=pair, use=use), rows()


@case(False)
def nested_inputs() -> tuple[Any, ...]:
    """Inputs have a node each, named by the path that leads to them."""

    def forward(m: Any, pair: Any, *, extra: Any) -> Any:
        return {"sum": [m.a(pair["left"]) + m.b(pair["both"][1])], "extra": m.c(extra), "none": None}

    inputs = Inputs({"left": rows(), "both": (rows(), rows(3, 4))}, extra=rows(1, 4))
    inputs.args[0]["both"] = (rows(5, 4), rows())
    return Net(forward, **linears("abc")), inputs


@case(True)
def an_optional_argument() -> tuple[Any, ...]:
    """None, a number and a text are no tensors."""
    layer = Net(lambda m, x, mask, scale, mode: x * scale if mask is None else x * mask)
    return Net(lambda m, x: m.layer(m.a(x), None, 0.5, "add"), a=linear(), layer=layer), rows()


@case(False)
def outputs_that_are_no_tensors() -> tuple[Any, ...]:
    """A layer that returns a number beside its tensor."""
    layer = Net(lambda m, x: (x.exp(), x.shape[0]))

    def forward(m: Any, x: Tensor) -> Any:
        out, size = m.layer(m.a(x))
        return m.b(out) * size, size

    return Net(forward, **linears("ab"), layer=layer), rows()


@case(True)
def an_output_of_integers() -> tuple[Any, ...]:
    """Indices take 8 bytes, and have no gradient: an embedding of the best of four."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.embed(m.best(m.a(x)))

    return Net(forward, a=linear(), best=Net(lambda m, x: x.argmax(-1)), embed=nn.Embedding(4, 3)), rows()


@case(True)
def a_region_without_gradients() -> tuple[Any, ...]:
    """Edges lead through it; nothing in it is kept, and what it makes sends no gradient back."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = m.b(m.a(x)).tanh()
        out: Tensor = m.c(x) * teacher
        return out

    return Net(forward, **linears("abc")), rows()


@case(True)
def a_detached_tensor() -> tuple[Any, ...]:
    """The same memory: the edge stays, no node is made, and no gradient goes back."""
    return Net(lambda m, x: m.b(m.a(x).detach()), **linears("ab")), rows()


@case(*BOTH)
def outputs_that_nobody_uses() -> tuple[Any, ...]:
    """A layer hands on both of its outputs, whoever reads them."""
    split = Net(lambda m, x: (x.exp(), x * 2))
    return Net(lambda m, x: m.b(m.split(m.a(x))[0]), a=linear(), split=split, b=linear()), rows()


@case(False)
def an_output_that_is_an_input() -> tuple[Any, ...]:
    """Handed on: nothing is made."""
    return Net(lambda m, x: (m.a(x), x), a=linear()), rows()


@case(False)
def a_layer_that_hands_on_its_input_beside_another() -> tuple[Any, ...]:
    """Who reads what was handed on reads it from who made it, not from who passed it along."""
    layer = Net(lambda m, x: (x, x.exp()))

    def forward(m: Any, x: Tensor) -> Any:
        same, other = m.layer(m.a(x))
        return m.b(same) + m.c(other)

    return Net(forward, **linears("abc"), layer=layer), rows()


@case(True)
def one_tensor_for_three_layers() -> tuple[Any, ...]:
    """One tensor id: it travels once to each device."""
    return Net(lambda m, x: (lambda h: m.b(h) + m.c(h) + m.d(h))(m.a(x)), **linears("abcd")), rows()


@case(True)
def outputs_that_go_different_ways() -> tuple[Any, ...]:
    """Each has an id of its own; views of one storage do as well, and only they travel."""
    split = Net(lambda m, x: x.tanh().chunk(2, 1))

    def forward(m: Any, x: Tensor) -> Any:
        left, right = m.split(m.a(x))
        return m.b(left) + m.c(right)

    return Net(forward, a=linear(4, 6), split=split, b=linear(3, 4), c=linear(3, 4)), rows()


@case(False)
def both_outputs_for_one_layer() -> tuple[Any, ...]:
    """The edge has the bytes of both."""
    split = Net(lambda m, x: (x.exp(), x[:, :1] * 2))
    join = Net(lambda m, x, y: x + y)
    return Net(lambda m, x: m.join(*m.split(m.a(x))), a=linear(), split=split, join=join), rows()


@case(False)
def a_view_that_travels() -> tuple[Any, ...]:
    """A transposed slice is no node, and its own bytes travel."""
    return Net(lambda m, x: m.b(m.a(x)[:, 1:].t()) + 1, a=linear(), b=linear(2, 4)), rows()


@case(False)
def a_mask_of_an_input() -> tuple[Any, ...]:
    """What is made of inputs only lies where the inputs lie: it is bound to nobody."""

    def forward(m: Any, x: Tensor) -> Tensor:
        mask = (x > 0).float()
        return m.a(x) * mask

    return Net(forward, a=linear()), rows()


@case(False)
def a_constant_made_of_nothing() -> tuple[Any, ...]:
    """It has no place, and belongs to its first user: no node."""
    return Net(lambda m, x: m.a(x) + torch.arange(4.0) * 2, a=linear()), rows()


@case(True)
def a_diamond_through_glue() -> tuple[Any, ...]:
    """Two layers read what a piece of glue made."""
    return Net(lambda m, x: (lambda h: m.d(m.b(h) + m.c(h)))(m.a(x) * 2), **linears("abcd")), rows()


# --- memory ------------------------------------------------------------------------------------


@case(*BOTH)
def what_activations_keep() -> tuple[Any, ...]:
    """A linear layer keeps its input, which its predecessor made; ReLU, Tanh, Sigmoid and Softmax
    keep their output; GELU its input."""
    layers = [linear(), nn.ReLU(), linear(), nn.Tanh(), linear(), nn.GELU(), linear(), nn.Softmax(-1)]
    return nn.Sequential(*layers), rows()


@case(*BOTH)
def what_norms_keep() -> tuple[Any, ...]:
    """LayerNorm keeps its input, and mean and inverse deviation of each row (2 x 4 bytes each)."""
    return nn.Sequential(linear(), nn.LayerNorm(4), linear()), rows()


@case(True)
def what_a_batch_norm_keeps() -> tuple[Any, ...]:
    """Its input, and mean and inverse deviation of each of five channels (20 bytes each)."""
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()), rows(2, 3, 4, 4)


@case(*BOTH)
def what_dropout_keeps() -> tuple[Any, ...]:
    """In training the mask, which on a CPU is one of floats; in evaluation it hands on its input."""
    return nn.Sequential(linear(), nn.Dropout(0.5), linear()), rows()


@case(*BOTH)
def what_an_embedding_keeps() -> tuple[Any, ...]:
    """The indices, which are the model's input: nothing that it made."""
    return nn.Sequential(nn.Embedding(10, 4), linear()), torch.zeros(2, 3, dtype=torch.long)


@case(*BOTH)
def what_a_convolution_keeps() -> tuple[Any, ...]:
    """Its input; max pooling keeps indices of 8 bytes for each output beside its input."""
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), nn.Flatten(), linear(5, 2)), rows(2, 3, 4, 4)


@case(*BOTH)
def outputs_that_are_views() -> tuple[Any, ...]:
    """Flatten, unflatten and identity make nothing, and lie with what they are views of."""
    layers = (linear(), nn.Unflatten(1, (2, 2)), nn.Identity(), nn.Flatten(), linear())
    return nn.Sequential(*layers), rows()


@case(True)
def in_place_activations() -> tuple[Any, ...]:
    """ReLU in place keeps its output, which is the memory that the layer before made."""
    return nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.Sigmoid()), rows()


@case(True)
def a_checkpointed_region() -> tuple[Any, ...]:
    """Only what goes into the region is kept."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.c(checkpoint(m.block, m.a(x), use_reentrant=False))

    block = nn.Sequential(linear(), nn.Tanh(), linear(), nn.Tanh())
    return Net(forward, **linears("ac"), block=block), rows()


@case(*BOTH)
def autocast() -> tuple[Any, ...]:
    """Weights and inputs are cast inside the layer; outputs take two bytes for each element."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.b(m.a(x))

    return Net(forward, **linears("ab")), rows()


@case(True)
def half_precision() -> tuple[Any, ...]:
    """Two bytes for each element, of weights as well."""
    return nn.Sequential(linear(), nn.ReLU(), linear()).bfloat16(), rows().bfloat16()


@case(True)
def an_input_that_wants_a_gradient() -> tuple[Any, ...]:
    """Then the first layer makes that gradient in backward."""
    return nn.Sequential(linear(), linear()), rows().requires_grad_()


@case(False)
def what_is_held_inside_a_layer() -> tuple[Any, ...]:
    """The most that is alive at once: the first two of three are, beside what is handed on."""
    layer = Net(lambda m, x: (x.exp() + x.exp()).sum(1))
    return Net(lambda m, x: m.layer(m.a(x)), a=linear(), layer=layer), rows()


@case(*BOTH)
def a_single_layer() -> tuple[Any, ...]:
    """The root is a layer if it has no children."""
    return linear(), rows()


@case(True)
def a_twin() -> tuple[Any, ...]:
    """Layers of one class with the same work on the same shapes; another width is none."""
    return nn.Sequential(linear(), linear(), linear(4, 5), linear(5, 4), linear()), rows()
