"""The site: `sphinx-build -W docs site`. Pages are Markdown; the reference comes from docstrings."""

import baechi

project = "baechi"
version = release = baechi.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"baechi {version}"
html_show_copyright = False
html_copy_source = False

nitpicky = False  # types of torch and networkx have no page here
default_role = "code"  # docstrings write names in single backticks, as Markdown does
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types where names do not
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_numpy_docstring = False
