"""Layers that the code skips, or reaches late, hold up no other layer."""

from order.drives import Drive

from baechi.order import LaunchOrder


def order_of(plan: str, code: str) -> LaunchOrder:
    """A launch order of layers on one device that do not read each other."""
    return LaunchOrder(dict.fromkeys(code, "d0"), tuple(plan), dict.fromkeys(code, ()), tuple(code))


def test_who_waits_for_a_skipped_layer_is_told() -> None:
    """The layer that shows that another was skipped need not be the one that waits for that."""
    assert Drive(order_of("BAC", "ABC")).run("AC").launched == ["A", "C"]


def test_a_layer_that_is_reached_late() -> None:
    """A layer that counts as skipped and is reached after all launches where the code reaches it."""
    run = Drive(order_of("AB", "AB")).run("BA")
    assert (run.launched, run.waited) == (["B", "A"], [])
