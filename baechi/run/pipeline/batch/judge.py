"""The judge: the whole batch beside its parts, before they train.

    the whole batch  ─▶ loss 3.90            ─▶ a rule gives it from those of the parts: it weighs them
    its parts        ─▶ losses 3.21, 5.80    ─▶ none does: the rows depend on each other, `BatchCoupled`

What is compared is all that the model returns. It is looked at without gradients (`looking`), at the first
step of each kind, and again at calls 2, 4, 8, 16, ... A value that is right may have a wrong gradient where
weights hide it, so weights that are all equal are something else meanwhile.
"""

import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from math import inf, isclose, isfinite
from typing import Any

import torch

from baechi.errors import UNSPLIT_CURE, BaechiError, BatchCoupled, note
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.candidates import rules_for
from baechi.run.pipeline.batch.evidence import Evidence, Figures, Heard, heard
from baechi.run.pipeline.batch.join import PLAIN, is_loss_at, leaves, loss_in, loss_name
from baechi.run.pipeline.batch.look import (
    HooksRegistered,
    Looker,
    Seen,
    Setting,
    Way,
    capture_installed,
    is_even,
)
from baechi.run.pipeline.batch.otherwise import otherwise
from baechi.run.pipeline.batch.partition import (
    Parted,
    Split,
    Unsplittable,
    divided,
    named_values,
    parted,
    some_rows,
)
from baechi.run.pipeline.batch.rounding import Rounding
from baechi.run.pipeline.batch.shares import ROWS, Rule, Told
from baechi.run.pipeline.batch.signals import says_nothing_of_rows
from baechi.run.state.thread_as_found import left_as_before
from baechi.torchlib.fakes.valueless import is_valueless
from baechi.torchlib.modules.inside import modules_in
from baechi.torchlib.private.modes import device_of, without_dispatch_modes
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.torchlib.tensors.storage import mark_of

logger = logging.getLogger(__name__)

GIVES, RUNS = "gives the same as the whole batch", "lets them run"
"""What a way to split inputs does."""

_FEW = 16
"""So few rows are looked at eight times where weights are all equal."""

_FLOATS_ALIKE = 1e-4
"""So far numbers of Python in lists may be off, of the larger one: what made them is not known."""

_STRANGE = "the model draws random numbers that are no matter of rows"
_NOTHING = "the loss of the whole batch is no number"

_STILL = (
    Setting(Way.STILL, precise=True, perturbed=1),
    Setting(Way.STILL, precise=False, perturbed=1),
    Setting(Way.STILL, precise=False, perturbed=0, casts=True),
)
_EVALUATION = tuple(replace(setting, way=Way.EVALUATION) for setting in _STILL)


@dataclass(frozen=True)
class Case:
    """A batch that is judged.

    Args:
        looker: looks at the model.
        inputs: the batch.
        parts: the same in parts.
        split: exceptions from how inputs are split.
    """

    looker: Looker
    inputs: Inputs
    parts: Parted
    split: Split

    @cached_property
    def kind(self) -> Hashable:
        """What batches of one kind have in common."""
        said: list[tuple[Any, Any]] = []
        for key, value in (*enumerate(self.inputs.args), *sorted(self.inputs.kwargs.items())):
            said.append((key, value if isinstance(value, (bool, str)) else type(value)))
        settings = [
            (name, value)
            for module in modules_in(self.looker.model)
            for name, value in vars(module).items()
            if value is True or value is False or type(value) is str  # such as `training`
        ]
        return sum(self.parts.rows), torch.is_grad_enabled(), tuple(said), hash(tuple(settings))

    def of_rows(self, sizes: Sequence[int]) -> "Case":
        """The same of the first rows of the batch."""
        few = some_rows(self.looker.model, self.inputs, range(sum(sizes)), self.split)
        return replace(self, inputs=few, parts=divided(self.looker.model, few, sizes, self.split))

    def split_as(self, split: Split) -> "Case":
        """The same, with inputs split otherwise."""
        number = len(self.parts.rows)
        return replace(self, split=split, parts=parted(self.looker.model, self.inputs, number, split))

    def runs_whole(self, setting: Setting) -> bool:
        """Whether the model runs with the whole batch, where parts may make it fail."""
        try:
            replace(self, parts=Parted((), (), ())).seen(setting)
        except (torch.OutOfMemoryError, Fails):
            return False
        return True

    def on_host(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The inputs that lie on the host, which may be read without waiting for a device, by number."""
        for number, tensor in enumerate(tensors_in(self.inputs.args, self.inputs.kwargs)):
            if mark_of(tensor) is None and device_of(tensor).type == "cpu" and not is_valueless(tensor):
                yield number, tensor

    def may_fail(self) -> bool:
        """Whether an index out of range raises, and that is all: in a kernel of CUDA it ends the process's
        use of the device. So what may be wrong is tried on the host only."""
        tensors = [*self.looker.model.parameters(), *tensors_in(self.inputs.args, self.inputs.kwargs)]
        return all(device_of(tensor).type in ("cpu", "meta") for tensor in tensors)

    def seen(self, setting: Setting) -> Seen:
        """What the model gives."""
        look = partial(self.looker.seen, setting, self.inputs, self.parts.parts, self.parts.rows)
        try:
            for _ in range(2):
                try:
                    return left_as_before(look)
                except HooksRegistered:
                    if not capture_installed(self.looker.model):
                        break
            raise BaechiError(
                "the model's forward registers hooks, which each microbatch would do: register them before, "
                f"or {UNSPLIT_CURE}"
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the model's code may raise anything in a look
            if says_nothing_of_rows(error):
                raise
            logger.debug("a look fails (%s): %s: %s", setting, type(error).__name__, error)
            raise Fails(f"it fails in a look ({type(error).__name__}: {str(error)[:200]})") from error


def _is_even(tensor: torch.Tensor) -> bool:
    """Whether there are several entries, which are all the same."""
    return tensor.layout == torch.strided and tensor.numel() > 1 and is_even(tensor)


class Fails(Exception):
    """The model's code raised an error in a look."""


@dataclass(frozen=True)
class Found:
    """What is known of the outputs of a kind of call.

    Args:
        dims: by output, the dimension of its rows, 0 for a list with an item for each; None for neither.
        apart: by output that its parts do not give, why.
        numbers: the outputs that are one number, however many rows there are.
        alike: those of them that every part gives as the whole does (a temperature, say): several rules give
            them, and any will do as long as parts are alike.
        writers: modules that may write their buffers, since a look in training saw that; None without one.
    """

    dims: Mapping[str, int | None] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    alike: frozenset[str] = frozenset()
    writers: frozenset[str] | None = None


@dataclass(frozen=True)
class Verdict:
    """What the parts of a batch count, and how their outputs are joined.

    Args:
        found: of outputs.
        shares: by name of a number, what it counts in each part.
        weigh: says the same of numbers where nothing is known of any.
        rows: how many each part has.
    """

    found: Found
    shares: Mapping[str, Sequence[Any]]
    weigh: Callable[[], Sequence[Any]]
    rows: Sequence[int]

    @cached_property
    def others(self) -> Sequence[Any]:
        """What numbers count in each part, where nothing is known of any."""
        return self.weigh()

    def shares_of(self, name: str) -> Sequence[Any] | None:
        """What a number of the parts counts; None if that is not known."""
        if name in self.shares:
            return self.shares[name]
        return self.others if is_loss_at(name) and not self.shares else None

    def is_number(self, name: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether an output is one number, and no row."""
        for one in tensors:
            if one.numel() != 1 or not one.is_floating_point():
                return False
        if name in self.found.dims:
            return name in self.found.numbers
        return all(one.dim() == 0 for one in tensors) or max(self.rows) > 1


@dataclass(frozen=True)
class _Output:
    """An output of the whole batch, and of its parts.

    Args:
        name: its name.
        whole: the whole batch's.
        parts: those of the parts.
    """

    name: str
    whole: Any
    parts: Sequence[Any]

    @property
    def is_number(self) -> bool:
        """Whether it is one floating element, however many rows there are."""
        return all(
            isinstance(one, torch.Tensor) and one.numel() == 1 and one.is_floating_point()
            for one in (self.whole, *self.parts)
        )

    def dim(self, rows: Sequence[int]) -> int | None:
        """The dimension that grows with the rows."""
        if isinstance(self.whole, list):
            long = [len(one) for one in (self.whole, *self.parts) if isinstance(one, list)]
            return 0 if long == [sum(rows), *rows] else None
        if not all(isinstance(one, torch.Tensor) for one in (self.whole, *self.parts)):
            return None
        shape, sizes = tuple(self.whole.shape), [sum(rows), *rows]
        for dim in range(len(shape)):
            grown = [(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes]
            if [tuple(one.shape) for one in (self.whole, *self.parts)] == grown:
                return dim
        return None


@dataclass(frozen=True)
class _Wrong:
    """An output that parts do not give.

    Args:
        whole: of the whole batch, in words.
        given: of its parts together.
    """

    whole: str
    given: str


class _Hearing:
    """What a look tells.

    Args:
        case: the batch.
        seen: what was seen.
        measured: by how much a number of the last part changes if each of its rows is there twice.
    """

    def __init__(self, case: Case, seen: Seen, measured: Callable[[str], float]) -> None:
        self._parts, self._unit, self._measured = case.parts, seen.unit, measured
        self.outputs = [_Output(name, each[0], each[1:]) for name, each in leaves([seen.whole, *seen.parts])]
        self.numbers = frozenset(output.name for output in self.outputs if output.is_number)
        self.dims: dict[str, int | None] = {}
        self.told: dict[str, Heard] = {}
        self.alike: set[str] = set()
        """Numbers that every part gives to the bit."""
        self.wrong: dict[str, _Wrong] = {}
        self.gives = False
        """Whether something is right that may be differentiated."""
        self.divides = False
        """Whether parts give something else than the whole."""

    def hear(self, output: _Output, rules: Sequence[Rule]) -> None:
        """A number: which rules give it; nothing if it is none (not finite)."""
        self.dims[output.name] = None
        figures = Figures.of(output.whole, output.parts)
        if all(one == figures.whole for one in figures.parts):
            self.alike.add(output.name)
        else:
            self.divides = True
        if isfinite(figures.whole):
            rounding = Rounding(self._unit, partial(self._measured, output.name))
            self.told[output.name] = told = heard(self._parts, rules, figures, rounding)
            if told.fitting:
                self.gives = True
            else:
                given = f"{told.given:.9g} (weighed by {told.rule.name})"
                self.wrong[output.name] = _Wrong(f"{figures.whole:.9g}", given)

    def compare(self, output: _Output) -> None:
        """Anything else: whether it is what its parts are, joined."""
        name, rows = output.name, self._parts.rows
        self.dims[name] = dim = output.dim(rows)
        wrong = self._difference(output, dim)
        if wrong is not None:
            self.wrong[name] = wrong
        elif dim is not None:
            self.divides = True
            self.gives |= any(one.is_floating_point() for one in tensors_in(output.whole))

    def _difference(self, output: _Output, dim: int | None) -> _Wrong | None:
        whole, parts, rounding = output.whole, output.parts, Rounding(self._unit, lambda: inf)
        if isinstance(whole, PLAIN):
            alike = all(one == parts[0] for one in parts)  # else they are not joined
            return _Wrong(repr(whole), repr(parts[0])) if alike and parts[0] != whole else None
        with without_dispatch_modes():
            if dim is None:
                one = isinstance(whole, torch.Tensor) and all(part is parts[0] for part in parts)
                pairs = [(whole, parts[0])] if one else []
            elif isinstance(whole, list):
                items = [item for part in parts for item in part]
                pairs = list(zip(tensors_in(whole), tensors_in(items), strict=False))
                wrong = _plain_difference(whole, items)
                if wrong is not None:
                    return wrong
            else:
                begun = accumulate(self._parts.rows, initial=0)
                pairs = [
                    (whole.narrow(dim, first, part.shape[dim]), part)
                    for first, part in zip(begun, parts, strict=False)
                ]
            for mine, other in pairs:
                mine, other = mine.detach().cpu(), other.detach().cpu()  # they may lie apart
                if mine.shape != other.shape:
                    return _Wrong(f"of shape {tuple(mine.shape)}", f"of shape {tuple(other.shape)}")
                if not rounding.same(mine, other):
                    return _first_difference(mine, other)
        return None


def _plain_difference(whole: list[Any], items: list[Any]) -> _Wrong | None:
    """The first value that is no tensor, in lists with an item a row, and that parts give otherwise."""
    pairs = zip(leaves([whole]), leaves([items]), strict=False)
    for (_, (mine,)), (_, (other,)) in pairs:
        if type(mine) is not type(other):
            return _Wrong(f"a {type(mine).__name__}", f"a {type(other).__name__}")
        if isinstance(mine, float):
            if not isclose(mine, other, rel_tol=_FLOATS_ALIKE):
                return _Wrong(f"{mine:.9g}", f"{other:.9g}")
        elif isinstance(mine, PLAIN) and mine != other:
            return _Wrong(f"{mine!r:.50}", f"{other!r:.50}")
    return None


class Judge:
    """What is known of a model whose step is split.

    Args:
        told: what the user says that losses count; None finds out.
        accepts: whether parts may train something else.
        tells: whether anything is logged.
        settings: how the model is set for looks, the best first; None for the usual ones.
        advises: whether an error says how inputs are to be split, if that is what is wrong.

    Attributes:
        judgements: how often the whole was compared with its parts.
    """

    def __init__(
        self,
        told: Told | None = None,
        *,
        accepts: bool = False,
        tells: bool = True,
        settings: Sequence[Setting] | None = None,
        advises: bool = True,
    ) -> None:
        self.judgements = 0
        self._told, self._accepts, self._tells, self._settings = told, accepts, tells, settings
        self._advises = advises
        self._numbers: dict[str, Evidence] = {}
        self._objective: str | None = None
        self._found: dict[Hashable, Found] = {}
        self._even: dict[Hashable, frozenset[int]] = {}
        """By kind, the numbers of inputs on the host that were the same all over at the last judgement."""
        self._wrong: dict[Hashable, Mapping[str, str]] = {}
        """By kind, the outputs that parts did not give once, and why."""
        self._calls = 0
        self._asks_again = True
        self._candidates_now: Sequence[Rule] | None = None
        """The rules for the batch that is judged, as long as it is."""
        self._said: set[str] = set()

    def verdict(self, case: Case, *, may_look: bool = True) -> Verdict:
        """What the parts of a batch count; `Unsplittable` if that takes a look, which may not be."""
        if len(case.parts.rows) == 1:  # it is the whole
            return Verdict(Found(), {}, partial(list, [1.0]), case.parts.rows)
        self._calls += 1
        self._candidates_now = None
        is_time = self._calls & (self._calls - 1) == 0 or case.kind not in self._found
        if even := self._even.get(case.kind):
            is_time = is_time or self._varies(case, even)
        for name, evidence in self._numbers.items() if self._asks_again else ():
            is_time = is_time or evidence.asks(case.parts, self._rules_of(name, case.parts))
        if is_time and not may_look:
            raise Unsplittable(
                "its parts would have to be compared with the whole, while another thread trains the model"
            )
        if is_time:
            try:
                self._judge(case)
                self._even[case.kind] = frozenset(n for n, one in case.on_host() if _is_even(one))
            except BaseException:
                self._found.pop(case.kind, None)  # the next call is judged again
                raise
        return self.known(case)

    def _varies(self, case: Case, even: frozenset[int]) -> bool:
        """Whether an input that was the same all over when it was judged, a mask of ones say, is not now."""
        return any(number in even and not _is_even(one) for number, one in case.on_host())

    def known(self, case: Case) -> Verdict:
        """The same by what is known, without a look."""
        self._candidates_now = None
        found, shares = self._found.get(case.kind, Found()), {}
        for name in self._numbers:
            shares[name] = self._rules_of(name, case.parts)[0].weigh(case.parts)
        weigh: Callable[[], Sequence[Any]] = list if shares else partial(self._unheard, case.parts)
        if found.numbers or not found.dims:  # else no output is known to be a number, and nobody will ask
            weigh = partial(list, weigh())  # the model's code may write what is weighed
        return Verdict(found, shares, weigh, case.parts.rows)

    def is_in_doubt(self, case: Case) -> bool:
        """Whether a look would be needed to know what the losses of these parts count."""
        self._candidates_now = None
        return any(
            evidence.asks(case.parts, self._rules_of(name, case.parts))
            for name, evidence in self._numbers.items()
            if self._objective in (None, name)
        )

    def hear(self, case: Case, numbers: Mapping[str, Figures]) -> str | None:
        """Note what numbers tell where the caller has looked; the name of one that no rule gives."""
        self._candidates_now = None
        for name, evidence in self._numbers.items():
            if name in numbers and isfinite(numbers[name].whole):
                rules = self._rules_of(name, case.parts)
                rounding = Rounding(case.looker.unit(), lambda: 0.0)
                told = heard(case.parts, rules, numbers[name], rounding)
                if told.fitting:
                    evidence.keep(told)
                elif self._objective in (None, name):
                    return name
        return None

    # --- rules

    def _rules_of(self, name: str, parts: Parted) -> list[Rule]:
        """The rules that may hold for a number, the likeliest first."""
        told = self._told if self._objective in (None, name) else None
        evidence, rule = self._numbers[name], None if told is None else told.rule()
        if rule is not None:
            return [rule]
        candidates = () if evidence.is_settled else self._candidates(parts, labels=told is not None)
        return evidence.rules(parts, candidates)

    def _unheard(self, parts: Parted) -> Sequence[Any]:
        """What numbers count where nothing was heard of any."""
        told = None if self._told is None else self._told.rule()
        rule = told or next(iter(self._candidates(parts, labels=self._told is not None)), ROWS)
        return rule.weigh(parts)

    def _candidates(self, parts: Parted, *, labels: bool = False) -> Sequence[Rule]:
        """The rules that may hold for any number: looking for them takes a look at the labels."""
        if self._candidates_now is None:
            against = [one.against for one in self._numbers.values()]
            self._candidates_now = rules_for(parts, set.intersection(*against) if against else ())
        if labels:
            return [one for one in self._candidates_now if one.ignored is not None] or [ROWS]
        return self._candidates_now

    # --- the judgement

    def _judge(self, case: Case) -> None:
        """Look at the whole batch and its parts, and note what that tells."""
        self._found.setdefault(case.kind, Found())
        self._asks_again, short, why = False, False, ""
        settings = self._settings or ((*_STILL, *_EVALUATION) if case.looker.model.training else _EVALUATION)
        strange: Way | None = None
        for setting in settings:
            if setting.way is strange:
                continue
            try:
                told = self._heard(case, setting, case.kind)
            except torch.OutOfMemoryError:
                short = True
                continue
            except Fails as failed:
                why = str(failed)
                continue
            if told is None:
                self._asks_again = True
                if strange is not None:
                    self._say("the batch was judged in evaluation only, since %s in training", _STRANGE)
                return
            why = told
            strange = setting.way if told is _STRANGE else strange
        if short and self._is_judged_in_part(case, settings[1 % len(settings)]):
            return
        if why is _NOTHING:
            self._asks_again = True
            return
        if not short and why is not _STRANGE and self._advises:
            self._refuse_failing(case, settings[1 % len(settings)], why)
        self._say(
            "parts of the batch were not judged beside the whole, since %s: if its rows depend on each "
            "other, microbatches train something else",
            why or "it does not fit",
        )

    def _refuse_failing(self, case: Case, setting: Setting, why: str) -> None:
        """Raise if parts fail where the whole batch does not."""
        if len(case.parts.rows) < 2 or not case.runs_whole(setting):
            return
        cure, helps = self.cure(case, setting)
        helped = f". {cure} {GIVES if helps else RUNS}"
        raise Unsplittable(
            "the model runs with the whole batch and not with its parts, which have rows of "
            f"{', '.join(case.parts.divided)}: {why}"
            + (helped if cure else f": {UNSPLIT_CURE}; split= says otherwise how inputs are divided")
        )

    def _is_judged_in_part(self, case: Case, setting: Setting) -> bool:
        """Judge the largest union of unequal parts that fits, in place of the whole."""
        for sizes in _unions(case.parts.rows):
            self._candidates_now = None
            try:
                if self._heard(case.of_rows(sizes), setting, case.kind) is None:
                    return True
            except (torch.OutOfMemoryError, Fails, Unsplittable):
                continue
        return False

    def _heard(self, case: Case, setting: Setting, kind: Hashable) -> str | None:
        """Look, and note what that tells; why it tells nothing, else None."""
        seen = case.seen(setting)
        self.judgements += 1
        hearing = self._hearing(case, seen, setting)
        objective = loss_name(seen.whole) if loss_in(seen.whole) is not None else None
        if objective is not None and objective not in hearing.told:
            return _NOTHING
        if hearing.wrong and seen.strange:
            self._found[kind] = Found(hearing.dims, self._found[kind].apart, hearing.numbers)
            return _STRANGE
        for name, told in hearing.told.items():
            if told.fitting:
                self._numbers[name].keep(told)
        try:
            self._settle(case, hearing, objective, setting, kind)
        except BatchCoupled as error:
            if seen.buffers:
                names = ", ".join(seen.buffers[:3])
                note(
                    error,
                    f"Each microbatch writes buffers, which then hold something else ({names}): a layer that "
                    "computes with them, as spectral norm does, may be what differs, and not the rows",
                )
            raise
        self._doubt(hearing, objective, kind)
        if setting.way is Way.STILL and not self._accepts:
            self._found[kind] = replace(self._found[kind], writers=seen.writers)
        if seen.buffers:
            self._say(
                "buffers are written from each microbatch, and hold something else than after the whole "
                "batch: %s",
                ", ".join(seen.buffers[:5]),
            )
        rows = sum(case.parts.rows)
        looks = 8 if rows <= _FEW else 1
        if 0 < setting.perturbed < looks and case.looker.has_flat_weights():
            # few rows may agree by chance, where the numbers that tell are not the model's own
            return self._heard(case, replace(setting, perturbed=setting.perturbed + 1), kind)
        return None

    def _hearing(self, case: Case, seen: Seen, setting: Setting) -> "_Hearing":
        """What a look tells of all outputs."""
        hearing = _Hearing(case, seen, partial(_measured, case, seen, setting))
        if self._objective is None and loss_in(seen.whole) is not None:
            self._objective = loss_name(seen.whole)
        for output in hearing.outputs:
            if output.is_number:
                self._numbers.setdefault(output.name, Evidence())
                hearing.hear(output, self._rules_of(output.name, case.parts))
            else:
                hearing.compare(output)
        return hearing

    def _settle(
        self, case: Case, hearing: _Hearing, objective: str | None, setting: Setting, kind: Hashable
    ) -> None:
        """Refuse what parts do not give, or note that it is not joined."""
        wrong, apart = hearing.wrong, dict(self._wrong.get(kind, {}))
        if wrong:
            name = objective if objective in wrong else next(iter(wrong))
            assert name is not None
            first = wrong[name]
            if self._accepts:
                self._say(
                    "%s is %s of the whole batch, %s from %d microbatches: accepted, they train otherwise",
                    *(_in_words(name), first.whole, first.given, len(case.parts.rows)),
                )
                for number in wrong.keys() & hearing.told.keys():
                    self._numbers[number].accept(hearing.told[number])
            elif name == objective or (objective is None and not hearing.gives):
                cure, helps = self.cure(case, setting) if self._advises else ("", False)
                if not helps:
                    cure = ""
                raise BatchCoupled(_in_words(name), first.whole, first.given, len(case.parts.rows), cure)
            else:
                apart |= {key: f"it is {one.whole}, {one.given} from parts" for key, one in wrong.items()}
        self._found[kind] = Found(hearing.dims, apart, hearing.numbers)

    def _doubt(self, hearing: _Hearing, objective: str | None, kind: Hashable) -> None:
        """Say that several rules give the loss; a number beside it is not joined until that is known."""
        doubts = {name: told for name, told in hearing.told.items() if told.doubt is not None}
        if (told := doubts.pop(objective or "", None)) is not None:
            self._say(
                "the whole batch does not tell what the losses of microbatches count: it is taken to be %s, "
                "and %s would do as well. Say it with loss_weights=",
                *(told.rule.name, told.doubt and told.doubt.name),
            )
        found = self._found[kind]
        self._wrong[kind] = found.apart
        alike = frozenset(doubts.keys() & hearing.alike)
        why = {
            name: f"several rules give it: {told.rule.name}, say"
            for name, told in doubts.items()
            if name not in alike
        }
        self._found[kind] = replace(found, apart={**why, **found.apart}, alike=alike)

    def cure(self, case: Case, setting: Setting) -> tuple[str, bool]:
        """How inputs are to be split, so that parts give what the whole batch gives."""
        runs = ""
        if not case.may_fail():
            return "", False
        inputs = named_values(case.looker.model, case.inputs)
        for split in otherwise(inputs, case.parts, case.split):
            judge = Judge(self._told, tells=False, advises=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what torch says of a wrong way to split is no matter
                try:
                    other = case.split_as(split)
                    seen = other.seen(setting)
                except (torch.OutOfMemoryError, Fails, ValueError):
                    continue
            hearing = judge._hearing(other, seen, setting)
            if hearing.gives and not hearing.wrong and hearing.divides:
                return f"split={dict(split)!r}", True
            runs = runs or f"split={dict(split)!r}"
        return runs, False

    def _say(self, text: str, *values: object) -> None:
        """Log it: loudly once, as it may be so in each step."""
        loud = self._tells and text not in self._said
        self._said.add(text)
        logger.log(logging.WARNING if loud else logging.DEBUG, text, *values)


def _unions(rows: Sequence[int]) -> Iterator[list[int]]:
    """Unequal parts of the first rows: of three microbatches, of two; the last one is about a half."""
    if len(rows) > 2 and sum(rows[:3]) > 3:
        yield [rows[0], rows[1], max(1, rows[2] // 2)]
    few = rows[0] + rows[1] - rows[1] // 2
    yield [rows[0], few - rows[0]] if rows[0] > 1 else [1, 1]


def _in_words(name: str) -> str:
    return f"the output {name}" if name else "what the model returns"


def _first_difference(one: torch.Tensor, other: torch.Tensor) -> _Wrong:
    """The element that differs most."""
    if one.dtype is torch.bool:
        one, other = one.int(), other.int()
    off = (one - other).abs().nan_to_num(inf).reshape(-1)
    place = int(off.argmax())
    values = one.reshape(-1)[place].item(), other.reshape(-1)[place].item()
    first, second = (f"{value:.9g}" if isinstance(value, float) else str(value) for value in values)
    return _Wrong(f"{first} at one place", f"{second} there")


def _measured(case: Case, seen: Seen, setting: Setting, name: str) -> float:
    """By how much a number of the last part changes if each of its rows is there twice."""
    rows = case.parts.rows
    last = list(range(sum(rows[:-1]), sum(rows)))
    try:
        twice = some_rows(case.looker.model, case.inputs, [*last, *last], case.split)
        found = replace(case, inputs=twice, parts=Parted((), (), ())).seen(setting)
    except (torch.OutOfMemoryError, Fails, Unsplittable):
        return inf
    once, again = (
        dict((key, float(each[0])) for key, each in leaves([result]) if key == name)[name]
        for result in (seen.parts[-1], found.whole)
    )
    return min(abs(again - once), abs(again - 2 * once))
