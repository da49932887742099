"""The script that tries other versions of torch names tests that are there."""

from torch_versions import ROOT, SUITE


def test_its_tests_are_there() -> None:
    """A folder that was renamed would end each version with "not found"."""
    assert [name for name in SUITE if not (ROOT / name).exists()] == []
