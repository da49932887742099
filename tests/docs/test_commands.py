"""What the page on the command line shows is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from docs.pages import blocks, page, same_figures
from typer.testing import CliRunner

from baechi.cli import app


def sessions() -> list[tuple[str, str]]:
    """Each command of the page, and what is shown below it."""
    text = "".join(code for _, code in blocks("docs/commands.md", "console"))
    return re.findall(r"^\$ baechi (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)


@pytest.mark.full
def test_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command, in order, in a folder with the page's `train.py`; an error exits with 2."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(blocks("docs/commands.md", "python")[0][1])
    assert len(sessions()) > 15
    for command, shown in sessions():
        result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "88"})
        assert result.exit_code == (2 if shown.startswith("error") else 0), result.output
        assert same_figures(f"{shown}...", result.output), f"baechi {command} prints\n{result.output}"


def test_every_command_is_on_the_page() -> None:
    """A heading, and a row of the table, for each."""
    headings = set(re.findall(r"^## (\w+)$", page("docs/commands.md"), re.MULTILINE))
    assert headings == {*typer.main.get_command(app).commands}  # type: ignore[attr-defined]
