"""The placers by name: a new placer needs a file of its own and a line here."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from baechi.place.abstract import Placer
from baechi.place.placers.chain import chain
from baechi.place.placers.even import even
from baechi.place.placers.m_etf import m_etf
from baechi.place.placers.m_sct import m_sct
from baechi.place.placers.m_topo import m_topo
from baechi.place.placers.random import RandomPlacer
from baechi.place.placers.round_robin import round_robin
from baechi.place.placers.single import single
from baechi.records import Cluster, LayerGraph, Plan

PLACERS: dict[str, Placer] = {
    "single": single,
    "m-topo": m_topo,
    "m-etf": m_etf,
    "m-sct": m_sct,
    "chain": chain,
    "even": even,
    "round-robin": round_robin,
}

SEEDED: dict[str, Callable[[int], Placer]] = {
    "random": RandomPlacer,
}
"""Placers that are named with a seed, as in `"random:7"`."""


def find(placer: str | Callable[..., Any]) -> Placer:
    """The placer that a user means."""
    if callable(placer):
        return _as_placer(placer)
    if not isinstance(placer, str):
        raise TypeError(f"a placer is a name or a callable, not {placer!r}")
    if placer in PLACERS:
        return PLACERS[placer]
    name, _, seed = placer.partition(":")
    if name in SEEDED and seed.isdecimal():
        return SEEDED[name](int(seed))
    if name in SEEDED:
        raise ValueError(f"placer {placer!r} needs a seed, a whole number: write '{name}:7'")
    known = ", ".join(["'auto'", *map(repr, PLACERS), *(f"'{family}:SEED'" for family in SEEDED)])
    raise ValueError(f"there is no placer {placer!r}: there are {known}, or pass a function")


def uses_several(placer: str | Callable[..., Any]) -> bool:
    """Whether `tight` may help a placer that finds no plan: one of ours that uses several devices."""
    return isinstance(placer, str) and placer != "single"


def places_ops(placer: str | Callable[..., Any]) -> bool:
    """Whether functional ops are moved where that gains: not where a user or chance has placed them."""
    return isinstance(placer, str) and placer.partition(":")[0] not in SEEDED


def _as_placer(function: Callable[..., Any]) -> Placer:
    takes_optimizer = _takes_optimizer(function)

    def place(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
        plan = function(graph, cluster, **({"optimizer": optimizer} if takes_optimizer else {}))
        if not isinstance(plan, Plan):
            raise TypeError(f"the placer {function!r} must return a Plan, not {plan!r}")
        return plan

    return place


def _takes_optimizer(function: Callable[..., Any]) -> bool:
    """Whether a placer also takes the optimizer; a callable with another signature is refused."""
    try:
        how = signature(function)
    except ValueError:  # functions written in C may have no signature
        return False
    takes_optimizer = "optimizer" in how.parameters
    try:
        how.bind(None, None, **({"optimizer": None} if takes_optimizer else {}))
    except TypeError as error:
        raise TypeError(
            f"{function!r} is no placer, since it cannot be called with a graph and a cluster ({error}): "
            "write `def placer(graph, cluster) -> Plan`, with `optimizer=None` behind if it matters"
        ) from error
    return takes_optimizer
