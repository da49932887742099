"""A pytest plugin that runs tests with a fault: `BAECHI_FAULT=name pytest -p faults.plugin`."""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

import pytest
from hypothesis import Phase, settings

from faults.declared import FAULTS, Fault


def with_fault(source: str, fault: Fault) -> str:
    """The source of a module with a fault.

    Args:
        source: of the module.
        fault: which one.

    Raises:
        ValueError: what the fault replaces is not there exactly once: the declaration is out of date.
    """
    found = source.count(fault.old)
    if found != 1:
        raise ValueError(f"{fault.name}: the text to replace is {found} times in {fault.module}")
    return source.replace(fault.old, fault.new)


class _Loader(SourceFileLoader):
    """Loads a module with a fault; nothing compiled is read or kept."""

    def __init__(self, spec: ModuleSpec, fault: Fault) -> None:
        super().__init__(spec.name, str(spec.origin))
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        source = with_fault(str(self.get_source(fullname)), self._fault)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self._fault.module else None
        if spec is not None:
            spec.loader = _Loader(spec, self._fault)
        return spec


if name := os.environ.get("BAECHI_FAULT"):
    sys.meta_path.insert(0, _Finder(next(fault for fault in FAULTS if fault.name == name)))


def pytest_configure(config: pytest.Config) -> None:
    """Examples that fail are not made smaller, which takes a minute."""
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("with a fault", settings.get_profile("same"), phases=phases)
    settings.load_profile("with a fault")
