"""The site: `sphinx-build -W docs site`. Pages are Markdown; the reference comes from docstrings."""

import re
from typing import Any

from sphinx.application import Sphinx

import baechi

project = "baechi"
version = release = baechi.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"baechi {version}"
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {f"{mode}_css_variables": {"code-font-size": "0.78rem"} for mode in ("light", "dark")}

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types where names do not
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_numpy_docstring = False


def setup(app: Sphinx) -> None:
    """Docstrings write code in single backticks, as Markdown does; the reference is made from two."""

    def two_backticks(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
        lines[:] = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines)).split("\n")

    app.connect("autodoc-process-docstring", two_backticks, priority=400)  # before its sections are read
