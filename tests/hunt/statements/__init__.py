"""The grammar: every module in here registers kinds of statements."""

from . import arithmetic, blocks, containers, copies, flow, functions, later, layers, random, state, views
from .registry import KINDS, Kind, write_all

__all__ = [
    "KINDS",
    "Kind",
    "arithmetic",
    "blocks",
    "containers",
    "copies",
    "flow",
    "functions",
    "later",
    "layers",
    "random",
    "state",
    "views",
    "write_all",
]
