"""What the workflows and hooks call is there: commands, files, extras, tiers."""

import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import baechi

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MADE = {"dist", "empty", "site", "plan.json", "report.html"}
"""What an earlier step made."""


def parsed(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def commands(file: Path) -> list[list[str]]:
    """The words of each command of a workflow, in order."""
    steps = [step for job in parsed(file)["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    return [shlex.split(line) for line in lines]


def check(words: list[str]) -> None:
    """Assert that a command, and the files that it names, exist."""
    command, *arguments = words
    if command.partition("/")[0] not in MADE:
        assert (Path(sys.executable).parent / command).exists() or shutil.which(command), command
    for word in arguments:
        named = "/" in word or word.endswith(".py")
        if named and word.partition("/")[0] not in MADE and " " not in word:
            assert (ROOT / word).exists(), word


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_commands_exist(file: Path) -> None:
    """Each command is installed, or was made before; each file it names is in the repository."""
    assert commands(file)
    for words in commands(file):
        check(words)


def test_extras_and_tiers(pytestconfig: pytest.Config) -> None:
    """Extras are those of the project, tiers those of its tests; all three tiers run."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    markers = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    run = [words for file in WORKFLOWS for words in commands(file)]
    assert {word[2:-1] for words in run for word in words if word.startswith(".[")} <= extras.keys()
    tiers = [words[1:] for words in run if words[0] == "pytest"]
    assert sorted(tiers) == [[], ["--tier", "full"], ["--tier", "nightly"]]
    assert {tier[1] for tier in tiers if tier} <= markers


def test_one_version() -> None:
    """The package, its metadata, the citation and the newest section of the changelog say the same one."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = parsed(ROOT / "CITATION.cff")["version"]
    newest = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert {metadata, citation, newest} == {baechi.__version__}


def test_hooks_are_the_static_checks() -> None:
    """Before a commit, in a workflow and in CONTRIBUTING: the same three commands."""
    hooks = [
        hook["entry"] for repo in parsed(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    ]
    for entry in hooks:
        check(shlex.split(entry))
    static = [shlex.join(words) for words in commands(ROOT / ".github/workflows/static.yml")]
    assert static[1:] == ["ruff check .", "ruff format --check .", "mypy --strict baechi"]
    assert [entry.removesuffix(" .") for entry in static[1:]] == hooks
    for entry in static[1:]:
        assert f"`{entry}`" in (ROOT / "CONTRIBUTING.md").read_text()


def test_forms_ask() -> None:
    """Each form of an issue has a program, a proof or a figure that it requires."""
    forms = [parsed(file) for file in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))]
    assert len(forms) == 4
    for form in forms:
        assert any(field.get("validations", {}).get("required") for field in form["body"])
