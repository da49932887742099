"""The page on the format of files says what the records declare."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "design" / "format.md"


def test_the_page_is_made_of_the_fields() -> None:
    """`python docs/design/format.py` writes it anew."""
    spec = spec_from_file_location("format_page", PAGE.with_suffix(".py"))
    assert spec is not None and spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.text() == PAGE.read_text()
