"""The table of operators: one row each, names that torch knows, and no second table anywhere."""

import ast
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch.nn import functional

import baechi
from baechi.torchlib.operators import table
from baechi.torchlib.operators.facts import facts_of
from baechi.torchlib.operators.functions import QUESTIONS, touched, writes_first
from baechi.torchlib.operators.rule import Rule
from baechi.torchlib.operators.table import FAMILIES, RULES, rule_of

OPERATORS = {schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas()}
FUNCTIONS = {name for owner in (torch, torch.Tensor, functional) for name in dir(owner)}
PACKAGE = Path(baechi.__file__).parent
COMPARES = ("backend", "capture", "run")
"""Rooms that look at operators and functions while a model runs."""


def test_one_row_each() -> None:
    """No name stands twice, and every row says something."""
    counts = Counter(name for names, _ in table._ROWS for name in names.split())
    assert [name for name, count in counts.items() if count > 1] == []
    assert [names for names, rule in table._ROWS if rule == Rule()] == []


def test_torch_knows_the_names() -> None:
    """A misspelt row would be without effect, and nothing would say so."""
    python = {"__get__", "__set__", "__imatmul__"}
    assert [name for name in RULES if name not in OPERATORS | FUNCTIONS | python] == []
    assert [p for p in FAMILIES if not any(fnmatchcase(name, p) for name in OPERATORS)] == []


def test_a_row_of_its_own_goes_before_families() -> None:
    """Only backwards of attention belong to two families; nothing with a row of its own belongs to any."""
    twice = {
        name: families
        for name in OPERATORS
        if len(families := [p for p in [*RULES, *FAMILIES] if fnmatchcase(name, p)]) > 1
    }
    assert all(name.endswith("_backward") and "attention" in name for name in twice)
    for name, families in twice.items():
        assert rule_of(name) is FAMILIES[max(families, key=len)]


def test_rules_stand_in_one_place() -> None:
    """No room compares the name of a function with one that the table knows."""
    found = []
    for path in (path for room in COMPARES for path in (PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = ast.unparse(node.left), *map(ast.unparse, node.comparators)
                texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                if texts & RULES.keys() and any(side in ("name", "facts.name") for side in sides):
                    found.append(f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}")
    assert found == []


def test_what_is_written_unsaid() -> None:
    """Of operators, the statistics; of functions, all that follows the first argument."""
    x, mean, var = torch.ones(3, 2), torch.zeros(2), torch.ones(2)
    normalize = torch.ops.aten.native_batch_norm.default
    assert facts_of(normalize).writes == ((3, "running_mean"), (4, "running_var"))
    assert facts_of(torch.ops.aten.batch_norm.default).writes == ()  # it calls others that say so
    args = (x, None, None, mean, var, True, 0.1, 1e-5)
    assert list(map(id, touched(normalize, "native_batch_norm", args, {}))) == [id(mean), id(var)]
    found = touched(functional.batch_norm, "batch_norm", (x, mean, var), {})
    assert list(map(id, found)) == [id(mean), id(var)]


def test_names_that_say_that_they_write() -> None:
    """A trailing underscore, and Python's operators in place."""
    assert all(map(writes_first, ("add_", "__iadd__", "__imatmul__", "__setitem__", "_fill_mem_")))
    assert not any(map(writes_first, ("add", "__add__", "__index__", "__getitem__", "__set__")))


def test_questions() -> None:
    """Attributes are asked through their getter; some methods are functions of torch, too."""
    assert {torch.Tensor.shape.__get__, torch.Tensor.dim, torch.numel, torch.Tensor.__len__} <= QUESTIONS
    assert not {torch.Tensor.item, torch.is_conj, torch.Tensor.grad.__get__} & QUESTIONS
