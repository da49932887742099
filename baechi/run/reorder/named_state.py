"""What a layer's code reads and may change beside its arguments, found by the names in it.

    code of the layer's classes ──> globals and closures that it names, through the functions that it calls
                                ──> attributes of these classes

An inference runs the code a first time, with fake tensors; then it runs for real. What the first run adds to
a list or a cache must not be there in the second. What torch and the standard library keep is left alone.
"""

import sys
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from baechi.torchlib.modules.as_found import Keeper
from baechi.torchlib.python_code import codes_of, functions_of

_LIBRARIES = frozenset(sys.stdlib_module_names - {"builtins", "collections", "random"}) | {"torch", "baechi"}
_CLOSED = (type, types.ModuleType, types.BuiltinFunctionType, nn.Module)


class Variable(NamedTuple):
    """A variable that code names: a global, or an attribute of a class.

    Args:
        table: where it is.
        name: its name there.
        value: what it was when it was found.
        owner: the class, if it is an attribute of one.
    """

    table: Mapping[str, Any]
    name: str
    value: Any
    owner: type | None

    @property
    def is_as_found(self) -> bool:
        """Whether it still has the same value."""
        return self.table.get(self.name) is self.value

    def put_back(self) -> None:
        """Give it the value again."""
        if self.owner is not None:
            setattr(self.owner, self.name, self.value)
        elif isinstance(self.table, dict):
            self.table[self.name] = self.value


class NamedState:
    """What the code of a layer names, noted.

    Args:
        layer: the layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._keeper = Keeper("none")
        named = Names(layer)
        self._variables = named.variables
        for value in (*named.others, *[variable.value for variable in named.variables]):
            self.keep(value)

    def keep(self, value: Any) -> None:
        """Note an object that the layer holds, too."""
        if not issubclass(type(value), _CLOSED) and not _is_library(type(value)):
            self._keeper.keep(value)

    def changed(self) -> bool:
        """Whether something that was noted is not what it was."""
        return self._keeper.changed() or not all(variable.is_as_found for variable in self._variables)

    def put_back(self) -> None:
        """Let everything be what it was."""
        for variable in self._variables:
            if not variable.is_as_found:
                variable.put_back()
        self._keeper.put_back()


class Names:
    """What the code of a layer names.

    Args:
        layer: the layer.

    Attributes:
        variables: globals, and attributes of its classes.
        others: variables of closures, and defaults of arguments.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.variables: list[Variable] = []
        self.others: list[Any] = []
        self._seen: set[int] = set()
        for module in layer.modules():
            for kind in type(module).__mro__:
                if not _is_library(kind) and id(kind) not in self._seen:
                    self._seen.add(id(kind))
                    self._look_into_class(kind)

    def _look_into_class(self, kind: type) -> None:
        for name, value in vars(kind).items():
            functions = [*functions_of(value)]
            if not functions and not name.startswith("__"):
                self.variables.append(Variable(vars(kind), name, value, kind))
            for function in functions:
                self._look_into(function)

    def _look_into(self, function: types.FunctionType) -> None:
        if id(function) in self._seen or _is_library(function):
            return
        self._seen.add(id(function))
        variables = function.__globals__
        for name in [name for code in codes_of(function) for name in code.co_names if name in variables]:
            value = variables[name]
            self.variables.append(Variable(variables, name, value, None))
            for inner in functions_of(value):
                self._look_into(inner)
        self.others += [*(function.__closure__ or ()), function.__defaults__]


def _is_library(kind: Any) -> bool:
    return str(kind.__module__).partition(".")[0] in _LIBRARIES
