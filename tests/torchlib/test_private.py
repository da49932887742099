"""Private names of torch are imported in `torchlib/private/`, and torch is patched there; nowhere else."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import baechi
from baechi.errors import BaechiError
from baechi.torchlib import private
from baechi.torchlib.private import compiler, lookup
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.compiler import leave_uncompiled
from baechi.torchlib.private.lookup import (
    attribute,
    found_names,
    kind,
    missing_names,
    named,
)
from baechi.torchlib.private.modes import UntracedDispatchMode, push_function_mode
from baechi.torchlib.private.patches import FUNCTION_APPLY, Place

PACKAGE = Path(baechi.__file__).parent
PRIVATE = PACKAGE / "torchlib" / "private"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PRIVATE))
for module in pkgutil.iter_modules(private.__path__):
    importlib.import_module(f"{private.__name__}.{module.name}")


@pytest.fixture(autouse=True)
def names_that_tests_make_up_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests ask what is missing."""
    monkeypatch.setattr(lookup, "_missing", lookup._missing.copy())


OF_PYTHON = {"_replace", "_fields", "_field_defaults", "_getframe", "_current_frames", "_lru_cache_wrapper"}
"""Private by their look only (named tuples), or private to Python."""

IN_A_STRING = re.compile(r"torch\.(?:\w+\.)*_[a-z]\w*(?:\.\w+)*\.?")


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def listed() -> set[str]:
    """Private attributes of torch's objects, and functions that are replaced, as `private` lists them."""
    names = {path.rpartition(".")[2] for path in (*found_names(), *missing_names())}
    return {name for name in names if is_private(name)}


def own_names(tree: ast.AST) -> set[str]:
    """The private names that a file gives to attributes, methods and slots of its own classes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign) and "__slots__" in map(ast.unparse, node.targets):
            found |= set(ast.literal_eval(node.value))
    return found


def documentation(tree: ast.AST) -> set[ast.AST]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def faults(source: str, elsewhere: set[str] = frozenset()) -> Iterator[str]:  # type: ignore[assignment]
    """Every private name of torch that a file has, and every attribute of torch that it sets.

    Args:
        source: the file's text.
        elsewhere: private names that other files of the package give to attributes of their own.
    """
    tree = ast.parse(source)
    own, said, known = own_names(tree), documentation(tree), listed()
    operators = {name for name in known if hasattr(torch.ops.aten, name)}
    from_torch = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torch":
            from_torch |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
            yield from [name for name in names if is_private(name) and "torch" in names]
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torch":
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            yield from filter(is_private, names)
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own | OF_PYTHON:
            if node.attr in known or node.attr not in elsewhere:
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in said:
            if node.value in known - own - operators or IN_A_STRING.fullmatch(node.value):
                yield node.value
        elif isinstance(node, ast.FunctionDef) and node.name == "_should_skip_dynamo":
            yield node.name
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value).split(".")[0] in from_torch:
                yield f"sets {ast.unparse(node)}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            if ast.unparse(node.args[0]).split(".")[0] in from_torch:
                yield ast.unparse(node)


OWN = {path: own_names(ast.parse(path.read_text())) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_file_has_private_names_of_torch(path: Path) -> None:
    """Each is imported, or replaced, in `torchlib/private/`."""
    elsewhere = {name for other, names in OWN.items() if other != path for name in names}
    assert list(faults(path.read_text(), elsewhere)) == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._ops import OpOverload",
        "from torch.utils import _pytree as pytree",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "torch._C._current_graph_task_id()",
        "tensor._version",
        "tensor._base",
        "node._sequence_nr()",
        "module._forward_hooks",
        "getattr(module, '_forward_hooks')",
        "logging.getLogger('torch._subclasses.fake_tensor')",
        "'torch._dynamo' in sys.modules",
        "class Mode:\n    def _should_skip_dynamo(cls): ...",
        "torch.Tensor.set_ = ours",
        "setattr(torch.Tensor, name, ours)",
        "from torch.autograd import Function\nFunction.apply = ours",
    ],
)
def test_the_walk_finds_what_it_looks_for(line: str) -> None:
    """Each way to name something private, or to patch torch, is found."""
    assert list(faults(line))


@pytest.mark.parametrize(
    "line", ["'''torch._C'''", "named._replace(x=1)", "self.x = torch.zeros(())", "'_to_copy'"]
)
def test_the_walk_leaves_other_names_alone(line: str) -> None:
    """Documentation, named tuples, own attributes, and operators."""
    assert not list(faults(line))


def test_this_torch_has_every_name() -> None:
    """Nothing that baechi needs is missing here."""
    assert missing_names() == {}
    assert len(found_names()) > 90


def test_without_a_name_using_it_raises() -> None:
    """It says which torch lacks which name, and for what it is needed."""
    absent_path, version = "torch._C._no_such_function", re.escape(torch.__version__)
    absent = named(absent_path, "try this")
    assert missing_names()[absent_path] == "try this"
    for use in (absent, lambda: bool(absent), lambda: list(absent), absent.__enter__):
        with pytest.raises(BaechiError, match=f"torch {version} has no {absent_path}, .*try this"):
            use()


def test_a_missing_name_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """With what it is needed for, when it is looked up: as baechi, or what needs it, is imported."""
    for _ in range(2):
        named("torch._no_such_name", "try that", None)
    named("torch._C", "try this")
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"torch {torch.__version__} has no torch._no_such_name, which baechi needs to try that" in said


def test_without_a_class_others_inherit_and_its_instances_raise() -> None:
    """A module that inherits from it can be imported."""
    absent = kind("torch._no_such_module.NoSuchMode", "see operations")

    class Mode(absent):  # type: ignore[misc]
        pass

    with pytest.raises(BaechiError, match="see operations"):
        Mode()
    assert not isinstance(torch.zeros(()), absent)


def test_without_an_attribute_reading_it_raises() -> None:
    """As for a function."""
    read = attribute(torch.Tensor, "_no_such_attribute", "read it")
    with pytest.raises(BaechiError, match="_no_such_attribute"):
        read(torch.zeros(()))


def test_functions_of_torch_are_handed_on_as_they_are() -> None:
    """No call goes through Python that did not before."""
    assert current_graph_task_id is torch._C._current_graph_task_id
    assert push_function_mode is torch._C._push_on_torch_function_stack


@pytest.mark.full
def test_every_name_missing_breaks_no_import() -> None:
    """`import baechi`, and every module of it, where torch has none of the names."""
    program = """
import importlib, pkgutil, torch
from baechi.torchlib.private import lookup
lookup._find = lambda path: (False, None)
lookup.hasattr = lambda *_: False
import baechi
for module in pkgutil.walk_packages(baechi.__path__, "baechi."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(len(lookup.missing_names()), len(lookup.found_names()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    missing, found = map(int, done.stdout.split())
    assert missing > 90 and found == 0


def test_decompositions_of_inductor_need_no_other_import() -> None:
    """In a process that has compiled nothing yet: torch's own of pooling asks another module."""
    program = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from baechi.torchlib.private.graphs import inductor_decompositions
def pooled(x):
    return torch.nn.functional.max_pool2d(x, 2)
print(make_fx(pooled, inductor_decompositions())(torch.ones(1, 2, 4, 4)).code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "_low_memory_max_pool" in done.stdout, done.stderr


def test_what_is_replaced_is_put_back() -> None:
    """Inherited attributes are inherited again; putting twice is putting once."""

    class Base:
        def asked(self) -> str:
            return "base"

    class Owner(Base):
        pass

    place = Place(Owner, "asked")

    def ours(owner: Owner) -> str:
        return f"ours, {place.original(owner)}"

    place.take_back()  # nothing of ours stands there
    place.put(ours)
    place.put(ours)
    assert Owner().asked() == "ours, base"
    with place.replaced(lambda owner: "inner"):
        assert Owner().asked() == "inner"
    assert Owner().asked() == "ours, base"
    place.take_back()
    assert Owner().asked() == "base" and "asked" not in vars(Owner)


def test_a_place_that_is_missing_stays_empty() -> None:
    """Nothing is put there."""
    owner = SimpleNamespace()
    place = Place(owner, "asked")
    place.put(1)
    with place.replaced(1):
        assert vars(owner) == {}
    place.take_back()
    Place(None, "asked").put(1)


def test_class_methods_are_put_back_as_they_were() -> None:
    """`Function.apply` is a class method again."""
    before = torch.autograd.Function.__dict__["apply"]
    with FUNCTION_APPLY.replaced(classmethod(lambda cls, *args: "ours")):
        assert torch.autograd.Function.apply() == "ours"  # type: ignore[no-untyped-call]
    assert torch.autograd.Function.__dict__["apply"] is before


def test_modes_of_ours_are_not_guarded_against_being_compiled() -> None:
    """Torch asks the class, and wraps none of its methods."""

    class Mode(UntracedDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    assert not hasattr(Mode.__torch_dispatch__, "__wrapped__")


def test_a_torch_that_skips_no_code_disables_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback computes the same."""
    monkeypatch.setattr(compiler, "_CAN_SKIP", False)
    assert leave_uncompiled(lambda x: x + 1, "why")(1) == 2
