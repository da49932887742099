"""What a record is in a file, by the declaration of its fields: read, checked, written and documented by it.

The type of a field says what there is:

    float, int             a number from 0 to `MOST`; ints are whole
    str                    text of at most `LONGEST` characters
    bool, None, Literal    themselves
    Sequence, tuple        a list; of a fixed length if each item has a type of its own
    Mapping                an object; a list of rows `[source, target, value]` if its keys are pairs
    a dataclass            an object by its fields, of which those in `later` may be missing (unless the class
                           says: those with a default); a list of their values if its class says `in_rows`
    Annotated[type, Rule]  what must hold in place of a range or a length
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from inspect import cleandoc
from itertools import islice
from math import inf, isfinite
from reprlib import Repr
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from baechi.errors import RecordError

LONGEST = 2000
"""Characters of a name at most."""

MOST = 1e24
"""Amounts are at most so large: their products are numbers."""

_BYTES = 2**63 - 1


def malformed(*places: tuple[str, str]) -> RecordError:
    """What is raised of values that are not as they are declared; `within` says where they stand."""
    said = [f"{path.removeprefix('.')}: {what}" if path else what for path, what in places]
    return RecordError("it is malformed:", tuple(said), places)


def within(key: str, error: RecordError) -> list[tuple[str, str]]:
    """The places of an error, seen from what has the value."""
    if error.places:
        return [(f"{key}{path}", what) for path, what in error.places]
    return [(key, fault) for fault in error.faults or (str(error),)]


@dataclass(frozen=True)
class Rule:
    """What must hold of a value beside its type.

    Args:
        words: as in `"a number above 0"`.
        holds: whether it does, of a value of the type.
    """

    words: str
    holds: Callable[[Any], bool]


Text = Annotated[str, Rule("of at most 100,000 characters", lambda text: len(text) <= 100_000)]
Name = Annotated[str, Rule(f"of 1 to {LONGEST:,} characters", lambda text: 0 < len(text) <= LONGEST)]
Place = Annotated[
    str, Rule("of at most 9 digits", lambda text: text.isascii() and text.isdigit() and len(text) < 10)
]
DeviceName = Annotated[
    str,
    Rule(
        f"of 1 to {LONGEST:,} characters without '>'",
        lambda text: 0 < len(text) <= LONGEST and ">" not in text,
    ),
]
Bytes = Annotated[int, Rule("from 0 to 2^63 - 1", lambda size: 0 <= size <= _BYTES)]
Seconds = Annotated[float, Rule("from 0 to 1e12", lambda time_s: 0 <= time_s <= 1e12)]
TotalBytes = Annotated[int, Rule("from 0 to 1e60", lambda size: 0 <= size <= 1e60)]
TotalSeconds = Annotated[float, Rule("from 0 to 1e60", lambda time_s: 0 <= time_s <= 1e60)]
Count = Annotated[float, Rule(f"from 0 to {MOST:g}", lambda number: 0 <= number <= MOST)]
Speed = Annotated[float, Rule("from 1e-6 to 1e6", lambda speed: 1e-6 <= speed <= 1e6)]
Rate = Annotated[float, Rule(f"from 1e-3 to {MOST:g}", lambda rate: 1e-3 <= rate <= MOST)]
LinkRate = Annotated[
    float, Rule(f"from 1e-3 to {MOST:g}, or infinite", lambda rate: 1e-3 <= rate <= MOST or rate == inf)
]
Positive = Annotated[int, Rule("of at least 1", lambda number: 1 <= number <= MOST)]
MOST_MICROBATCHES = 100_000
"""A batch is split in so many parts at most."""

Microbatches = Annotated[
    int, Rule(f"from 1 to {MOST_MICROBATCHES:,}", lambda number: 1 <= number <= MOST_MICROBATCHES)
]
Dimension = Annotated[int, Rule("from -64 to 63", lambda dim: -64 <= dim < 64)]

RULES = {"s": get_args(Seconds)[1], "bytes": get_args(Bytes)[1], "text": get_args(Text)[1]}
"""What must hold of values in these units."""


class Form(NamedTuple):
    """How values of a type are in a file.

    Args:
        words: what they are, such as `"a whole number of at least 1"`.
        read: a value of it; raises `RecordError`.
        write: what `read` reads.
        large: it is a record of its own, which is written behind what is short.
    """

    words: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    large: bool = False


class _Plain(NamedTuple):
    words: str
    fits: Callable[[Any], bool]
    rule: Rule
    made: Callable[[Any], Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or (isfinite(value) and value.is_integer()))


_RANGE = Rule(f"from 0 to {MOST:g}", lambda value: 0 <= value <= MOST)
_ANY = Rule("", lambda value: True)
_PLAIN: dict[Any, _Plain] = {
    float: _Plain("a number", _is_number, _RANGE, lambda value: value),
    int: _Plain("a whole number", _is_whole, _RANGE, int),
    str: _Plain(
        "text",
        lambda value: isinstance(value, str),
        Rule(f"of at most {LONGEST:,} characters", lambda text: len(text) <= LONGEST),
        lambda value: value,
    ),
    bool: _Plain("true or false", lambda value: isinstance(value, bool), _ANY, lambda value: value),
    NoneType: _Plain("null", lambda value: value is None, _ANY, lambda value: value),
}

_short = Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = _short.maxlist = _short.maxdict = _short.maxtuple = 3


def shown(value: Any) -> str:
    """A value in a sentence: its `repr`, short whatever it is."""
    return _short.repr(value)


def few_of(names: Sequence[str], between: str = ", ") -> str:
    """Names in a sentence: the first few of them, each short, and how many more there are."""
    few = [name if len(name) <= _short.maxstring else shown(name) for name in names[:_FEW]]
    more = [f"and {len(names) - _FEW:,} more"] if names[_FEW:] else []
    return between.join([*few, *more])


def some_of(faults: Iterable[str]) -> list[str]:
    """The first of many faults of one kind, and how many more there are."""
    sentences = iter(faults)
    first = list(islice(sentences, _MOST_ALIKE))
    more = sum([1 for _ in sentences])
    return [*first, f"and {more:,} more like these"] if more else first


_FEW, _MOST_ALIKE = 8, 15


def refused(value: Any, words: str) -> RecordError:
    """What is raised of a value that is something else."""
    return malformed(("", f"it is {shown(value)}, not {words}"))


@cache
def form_of(kind: Any) -> Form:
    """How values of a type are in a file."""
    if get_origin(kind) is NotRequired:
        return form_of(*get_args(kind))
    if get_origin(kind) is Annotated:
        kind, *said = get_args(kind)
        rule = next((one for one in said if isinstance(one, Rule)), None)
        unit = next((one for one in said if isinstance(one, str)), "")
        return _form(kind, rule or (RULES.get(unit) if unit else None))
    return _form(kind, None)


def _form(kind: Any, rule: Rule | None) -> Form:
    origin, args = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _of_plain(_PLAIN[kind], None if kind is NoneType else rule)
    if origin in (Union, UnionType):
        return _of_either(
            [form_of(one) if get_origin(one) is Annotated else _form(one, rule) for one in args]
        )
    if origin is Literal:
        return _of_choice(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _of_row([("", form_of(one), True) for one in args], "a list of " + _listed(args), tuple)
    if origin in (tuple, Sequence):
        return _of_list(form_of(args[0]))
    if origin is Mapping:
        keys = args[0]
        value = _form(args[1], rule) if args[1] in _PLAIN else form_of(args[1])
        return _of_pairs(keys, value) if get_origin(keys) is tuple else _of_mapping(form_of(keys), value)
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        entries = [(name, form_of(hint), name in kind.__required_keys__) for name, hint in hints.items()]
        return _of_object(entries, "an object", dict, dict, others=True)
    if hasattr(kind, "from_body"):
        read = _either_way(kind, kind.from_body)
        return Form(f"a {kind.record_kind}", read, lambda record: record.body(), large=True)
    return record_form(kind)


def record_form(cls: Any) -> Form:
    """How a dataclass or a named tuple is in a file."""
    return _record_form(cls)


@cache
def _record_form(cls: Any) -> Form:
    hints = get_type_hints(cls, include_extras=True)
    if is_dataclass(cls):
        own = [field for field in fields(cls) if field.init]
        later = getattr(cls, "later", [one.name for one in own if not _is_needed(one)])
        entries = [(one.name, form_of(hints[one.name]), one.name not in later) for one in own]
    else:
        entries = [(name, form_of(hints[name]), name not in cls._field_defaults) for name in cls._fields]
    if getattr(cls, "in_rows", not is_dataclass(cls)):
        return _of_row(entries, f"a `{cls.__name__}`", lambda values: cls(*values), cls)
    about = hasattr(cls, "from_body")  # records may say more than is read
    return _of_object(entries, f"a `{cls.__name__}`", lambda values: cls(**values), cls, others=about)


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def check(record: Any, what: str) -> None:
    """Check a record that was built in a program, by its declaration."""
    faults = faults_of(record)
    if faults:
        raise RecordError(f"{what} is malformed:", tuple(faults))


def faults_of(record: Any) -> list[str]:
    """What is wrong with a record that was built in a program, such as `"speed is 0, not ..."`."""
    found: list[tuple[str, str]] = []
    for name, read in readers(type(record)).items():
        try:
            read(getattr(record, name))
        except RecordError as error:
            found += within(name, error)
    return [in_words(path, what) for path, what in found]


def readers(cls: Any) -> dict[str, Callable[[Any], Any]]:
    """By field of a dataclass, what raises `RecordError` of a value that is none of it."""
    return _readers(cls)


@cache
def _readers(cls: Any) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: form_of(hints[field.name]).read for field in fields(cls) if field.init}


def in_words(path: str, what: str) -> str:
    """A place and what is wrong there, in one sentence: `"speed is 0, not a number above 0"`."""
    return f"{path} {what.removeprefix('it ')}" if what.startswith("it ") else f"{path}: {what}"


def documented(cls: Any) -> list[tuple[str, str, str, str]]:
    """The fields of a record, for the documentation."""
    hints = get_type_hints(cls, include_extras=True)
    if not is_dataclass(cls):
        said = _meanings(cls)
        return [(name, form_of(hints[name]).words, "", said[name]) for name in cls._fields]
    rows = []
    for field in [field for field in fields(cls) if field.init]:
        hint = hints[field.name]
        texts = [one for one in get_args(hint)[1:] if isinstance(one, str) and get_origin(hint) is Annotated]
        meaning = texts[-1] if texts else _meanings(cls)[field.name]
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        missing = (
            ""
            if default is MISSING
            else {"()": "none", "{}": "none", "None": "null"}.get(repr(default), repr(default))
        )
        rows.append((field.name, form_of(hints[field.name]).words, missing, meaning))
    return rows


def _meanings(cls: Any) -> dict[str, str]:
    """What a docstring says of each argument."""
    text = cleandoc(cls.__doc__).partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", text, re.M)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def _of_plain(plain: _Plain, rule: Rule | None) -> Form:
    fits, made = plain.fits, plain.made
    holds = (rule or plain.rule).holds
    words = f"{plain.words} {(rule or plain.rule).words}".strip()

    def read(value: Any) -> Any:
        if fits(value) and holds(value):
            return made(value)
        raise refused(value, words)

    return Form(words, read, lambda value: value)


def _of_choice(known: tuple[Any, ...]) -> Form:
    words = f"one of {', '.join(map(str, known))}"

    def read(value: Any) -> Any:
        if isinstance(value, str) and value in known:
            return value
        raise refused(value, words)

    return Form(words, read, lambda value: value)


def _of_either(forms: Sequence[Form]) -> Form:
    """One of several types, of which at most the last is an object's; null among them."""
    words = " or ".join([form.words for form in forms])
    others = [form for form in forms if form.words != "null"]

    def read(value: Any) -> Any:
        if value is None and len(others) < len(forms):
            return None
        if len(others) == 1 or isinstance(value, Mapping):
            return others[-1].read(value)
        for form in others:
            with suppress(RecordError):
                return form.read(value)
        raise refused(value, words)

    def write(value: Any) -> Any:
        form = others[-1] if isinstance(value, Mapping) else others[0]
        return None if value is None else form.write(value)

    return Form(words, read, write, any([form.large for form in others]))


def _of_list(item: Form) -> Form:
    one_reads, one_writes = item.read, item.write
    words = f"a list, each {item.words}"

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise refused(value, words)
        found, wrong = [], []
        for position, one in enumerate(value):
            try:
                found.append(one_reads(one))
            except RecordError as error:
                wrong += within(f"[{position}]", error)
        if wrong:
            raise malformed(*wrong)
        return tuple(found)

    return Form(words, read, lambda value: [one_writes(one) for one in value])


def _of_mapping(key: Form, item: Form) -> Form:
    words = f"an object, each value {item.words}"

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise refused(value, words)
        found, wrong = {}, []
        for name, one in value.items():
            try:
                found[key.read(name)] = item.read(one)
            except RecordError as error:
                wrong += within(f"[{shown(name)}]", error)
        if wrong:
            raise malformed(*wrong)
        return found

    return Form(words, read, lambda value: {name: item.write(one) for name, one in value.items()})


def _of_pairs(keys: Any, item: Form) -> Form:
    """A mapping by pairs: a list of `[source, target, value]`."""
    ends = form_of(keys)
    words = f"a list of rows: two names, and {item.words}"

    def read(value: Any) -> Any:
        if isinstance(value, Mapping) and all([isinstance(pair, tuple) for pair in value]):
            value = [[*pair, one] for pair, one in value.items()]
        if not isinstance(value, (list, tuple)):
            raise refused(value, words)
        found: dict[Any, Any] = {}
        wrong: list[tuple[str, str]] = []
        for position, row in enumerate(value):
            try:
                if not isinstance(row, (list, tuple)) or len(row) != 3:
                    raise refused(row, f"two names, and {item.words}")
                pair = ends.read(row[:2])
                if pair in found:
                    raise malformed(("", f"it is a second one from {shown(pair[0])} to {shown(pair[1])}"))
                found[pair] = item.read(row[2])
            except RecordError as error:
                wrong += within(f"[{position}]", error)
        if wrong:
            raise malformed(*wrong)
        return found

    return Form(words, read, lambda value: [[*pair, item.write(one)] for pair, one in value.items()])


Entry = tuple[str, Form, bool]
"""A field's name, form, and whether it must be there."""


def _of_row(entries: Sequence[Entry], words: str, made: Callable[[Any], Any], own: Any = ()) -> Form:
    least, most = sum([needed for *_, needed in entries]), len(entries)

    def read(value: Any) -> Any:
        if own and type(value) is own:
            value = [getattr(value, name) for name, *_ in entries]
        if not isinstance(value, (list, tuple)) or not least <= len(value) <= most:
            raise refused(value, words)
        found, wrong = [], []
        for position, one in enumerate(value):
            try:
                found.append(entries[position][1].read(one))
            except RecordError as error:
                wrong += within(f"[{position}]", error)
        if wrong:
            raise malformed(*wrong)
        return made(found)

    def write(value: Any) -> Any:
        values = [getattr(value, name) for name, *_ in entries] if own else value
        return [form.write(one) for (_, form, _), one in zip(entries, values, strict=True)]

    return Form(words, read, write)


def _of_object(
    entries: Sequence[Entry], words: str, made: Callable[[Any], Any], own: Any, *, others: bool = False
) -> Form:
    known = {name for name, *_ in entries}
    in_file = sorted(entries, key=lambda entry: entry[1].large)

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise refused(value, words)
        found, wrong = {}, []
        for name, form, needed in entries:
            if name in value:
                try:
                    found[name] = form.read(value[name])
                except RecordError as error:
                    wrong += within(f".{name}", error)
            elif needed:
                wrong.append(("", f"it misses {name!r}"))
        if not others:
            unknown = [name for name in value if name not in known]
            wrong += [("", f"it has {shown(name)}, which is unknown") for name in unknown]
        if wrong:
            raise malformed(*wrong)
        return made(found)

    def write(value: Any) -> Any:
        if own is dict:
            return {name: form.write(value[name]) for name, form, _ in entries if name in value}
        return {name: form.write(getattr(value, name)) for name, form, _ in in_file}

    return Form(words, read if own is dict else _either_way(own, read), write)


def _either_way(cls: Any, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A reader that lets a record be that was built already."""
    return lambda value: value if isinstance(value, cls) else read(value)


def _listed(kinds: Sequence[Any]) -> str:
    return " and ".join([form_of(one).words for one in kinds])
