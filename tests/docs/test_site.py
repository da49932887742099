"""The site builds without a warning, and has what people look for."""

import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import ROOT

import baechi

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--doctree-dir",
        str(folder / "doctrees"),
    ]
    done = subprocess.run(
        [*build, str(ROOT / "docs"), str(folder / "html")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_there(site: Path) -> None:
    """Each Markdown file is a page, reached from the index."""
    index = (site / "index.html").read_text()
    for file in (ROOT / "docs").rglob("*.md"):
        page = file.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / page).is_file()
        assert f'href="{page}"' in index or page == "index.html"


def test_every_public_name_is_there(site: Path) -> None:
    """The reference has an entry, with a link to it, for each."""
    reference = (site / "api.html").read_text()
    for name in baechi.__all__:
        assert f'id="baechi.{name}"' in reference, name
