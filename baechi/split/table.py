"""Which classes of layers can be split: rules by the full name of a class.

register_split ──▶ add_rule ─┐
                             ├──▶ rule_of(class), rule_named("Linear")
rules/ (torch's layers) ─────┘    looked for: then these files are imported, and torch with them
"""

from importlib import import_module

from torch import nn

from baechi.split.dimension import SplitRule
from baechi.torchlib.modules.intercept import without_replacement

_FILES = ("layers", "attention", "scaled_embedding")
"""Of `baechi.split.rules`: each has `RULES` by class, `FAMILIES` by the ending of a class's name, or both."""

_RULES: dict[str, SplitRule] = {}
_NAMES: dict[str, str] = {}
_FAMILIES: dict[str, SplitRule] = {}
"""By the ending of their names, classes that one library has for each of its models."""


def _with_ours() -> None:
    """The rules of these files are in the table, before others are added to it or anything is looked for."""
    if _RULES:
        return
    for file in _FILES:
        found = import_module(f"baechi.split.rules.{file}")
        for key, rule in getattr(found, "RULES", {}).items():
            _put(key, rule)
        _FAMILIES.update(getattr(found, "FAMILIES", {}))


def _family_of(name: str) -> SplitRule | None:
    return next((rule for ending, rule in _FAMILIES.items() if name.endswith(ending)), None)


def key_of(kind: type) -> str:
    """The full name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def add_rule(key: str, rule: SplitRule) -> None:
    """Add a rule, or replace one of the same class."""
    _with_ours()
    _put(key, rule)


def _put(key: str, rule: SplitRule) -> None:
    name = key.rpartition(".")[2]
    faults = [] if rule.dims else ["it has no dimensions"]
    for dim, how in rule.dims.items():
        faults += [
            f"{dim} cuts {weight}, which is not listed" for weight in how.cuts if weight not in rule.weights
        ]
        whole = [weight for weight in rule.weights if weight not in how.cuts]
        if not how.cuts and (how.takes is None or how.join != "cat"):
            faults.append(f"{dim} cuts no weight, so it has to take and concatenate rows of the input")
        if how.cuts and how.join == "cat" and whole:
            faults.append(f"{dim} concatenates, so it has to cut {', '.join(whole)}, too")
    if _NAMES.get(name, key) != key:
        faults.append(f"{_NAMES[name]} is split by a rule of that name already")
    if faults:
        raise ValueError(f"the rule for {key} is malformed: {'; '.join(faults)}")
    _RULES[key], _NAMES[name] = rule, key


def rule_of(kind: type) -> SplitRule | None:
    """The rule of a class of layers; None if they cannot be split. Subclasses need rules of their own."""
    _with_ours()
    return _RULES.get(key_of(kind)) or _family_of(kind.__name__)


def refusal_of(layer: nn.Module, rule: SplitRule) -> str:
    """Why a layer cannot be split by the rule of its class; empty if it can."""
    unknown = [name for name, _ in layer.named_parameters() if name not in rule.weights]
    if unknown:
        return f"its rule does not know its weights {', '.join(unknown)}"
    if "forward" in without_replacement(layer):
        return "its forward was replaced on this one layer, and shards compute what its class does"
    return rule.refuses(layer)


def rule_named(name: str) -> SplitRule:
    """The rule of a class that a layer graph names."""
    _with_ours()
    key = _NAMES.get(name)
    found = _family_of(name) if key is None else _RULES[key]
    if found is None:
        raise ValueError(f"no rule splits a {name}: add one with baechi.register_split")
    return found
