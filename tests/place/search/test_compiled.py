"""What is compiled does as it says, kept for the next process or not."""

from baechi.place.search.compiled import compiled


def test_without_a_place_to_keep_it() -> None:
    """A function of no file cannot be kept: it is compiled all the same."""
    scope: dict[str, object] = {}
    exec("def double(number):\n    return 2 * number", scope)
    double = compiled(scope["double"])  # type: ignore[type-var]
    assert double(21) == 42
    assert double.signatures  # by the compiler, not by Python
