"""Ranks that obey one total order never wait in a circle, also if a send is over only when it is received."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from baechi.order.pipeline.by_rank import Action, Computation, Message, Transfer, in_messages, of_rank

Reads = Mapping[Computation, Sequence[int]]
"""By computation, the numbers of the transfers that it reads."""

Order = list[Computation | Transfer]


def transfer(number: int, source: int, target: int, *, backward: bool = False) -> Transfer:
    return Transfer(number, source, target, 0, number, number, backward, (1,), (1,), "float32")


@some.composite
def plans(draw: Any) -> tuple[int, Order, Reads]:
    """A random graph of computations on ranks: values are sent when they are made, or when they are read."""
    ranks = draw(some.integers(2, 6))
    order: Order = []
    reads: dict[Computation, list[int]] = {}
    size = draw(some.integers(1, 25))
    of = [draw(some.integers(0, ranks - 1)) for _ in range(size)]
    edges = [sorted(draw(some.sets(some.integers(0, n - 1), max_size=3))) if n else [] for n in range(size)]
    at_once = draw(some.lists(some.booleans(), min_size=size, max_size=size))
    groups = draw(some.lists(some.booleans(), min_size=size, max_size=size))
    sent: dict[tuple[int, int], int] = {}
    number = 0

    def send(maker: int, target: int) -> None:
        nonlocal number
        if of[maker] != target and (maker, target) not in sent:
            order.append(transfer(number, of[maker], target, backward=groups[maker]))
            sent[maker, target] = number
            number += 1

    for place in range(size):
        for maker in edges[place]:
            send(maker, of[place])
        one = Computation(of[place], 0, place)
        reads[one] = [sent[maker, of[place]] for maker in edges[place] if of[maker] != of[place]]
        order.append(one)
        if at_once[place]:
            for reader in range(place + 1, size):
                if place in edges[reader]:
                    send(place, of[reader])
    return ranks, order, reads


def stuck(parts: Sequence[Sequence[Action]], reads: Reads, most_sends: int) -> list[int]:
    """Play ranks on channels without buffers; returns the ranks that never end.

    A message is over when both ends have issued it, and all that either issued before in its group is over.
    """
    places, over = [0] * len(parts), set[int]()
    issued: list[list[Message]] = [[] for _ in parts]

    def heads(rank: int) -> Iterator[int]:
        for backward in (False, True):
            first = [one for one in issued[rank] if one.backward == backward and first_of(one) not in over]
            yield from map(first_of, first[:1])

    def may_go(rank: int, one: Action) -> bool:
        if isinstance(one, Computation):
            return over.issuperset(reads[one])
        mine = [each for each in issued[rank] if each.source == rank and each.target == one.target]
        under_way = [each for each in mine if first_of(each) not in over]
        return one.source != rank or len(under_way) < most_sends

    moved = True
    while moved:
        moved = False
        for rank, part in enumerate(parts):
            while places[rank] < len(part) and may_go(rank, part[places[rank]]):
                one = part[places[rank]]
                issued[rank] += [one] if isinstance(one, Message) else []
                places[rank] += 1
                moved = True
        ends = [number for rank in range(len(parts)) for number in heads(rank)]
        both = {number for number in ends if ends.count(number) == 2}
        moved |= bool(both - over)
        for one in [message for each in issued for message in each if first_of(message) in both]:
            over |= {transfer.number for transfer in one.transfers}
    return [
        rank
        for rank, part in enumerate(parts)
        if places[rank] < len(part) or any(first_of(one) not in over for one in issued[rank])
    ]


def first_of(message: Message) -> int:
    return message.transfers[0].number


@given(plans(), some.integers(1, 4), some.integers(1, 12))
def test_one_order_is_free_of_deadlock(plan: tuple[int, Order, Reads], most_sends: int, most: int) -> None:
    ranks, order, reads = plan
    sent = in_messages(order, lambda one: 4, most)
    assert stuck([of_rank(sent, rank) for rank in range(ranks)], reads, most_sends) == []


def test_two_orders_are_not() -> None:
    """What is played here can get stuck: two ranks that each wait for the other one's value first."""
    order = in_messages([transfer(0, 0, 1), transfer(1, 1, 0)], lambda one: 4, 4)
    assert stuck([order, order], {}, 1) == []
    assert stuck([order, order[::-1]], {}, 1) == [0, 1]


@given(plans(), some.integers(1, 12))
def test_each_action_is_of_its_ranks(plan: tuple[int, Order, Reads], most: int) -> None:
    ranks, order, _ = plan
    sent = in_messages(order, lambda one: 4, most)
    parts = [of_rank(sent, rank) for rank in range(ranks)]
    for one in sent:
        ends = {one.rank} if isinstance(one, Computation) else {one.source, one.target}
        assert {rank for rank, part in enumerate(parts) if one in part} == ends
    for part in parts:
        assert part == [one for one in sent if one in part]


@given(plans(), some.integers(1, 12))
def test_messages_keep_the_order(plan: tuple[int, Order, Reads], most: int) -> None:
    """They have all values, in their order; no message of several is too large, or joins what is apart."""
    _, order, _ = plan
    sent = in_messages(order, lambda one: 4, most)
    found: Order = []
    for one in sent:
        found += one.transfers if isinstance(one, Message) else [one]
    assert found == order
    for one in sent:
        if isinstance(one, Message):
            ways = {(each.source, each.target, each.backward) for each in one.transfers}
            assert ways == {(one.source, one.target, one.backward)}
            assert len(one.transfers) <= max(1, most // 4)


def test_what_is_joined() -> None:
    """Small values of one way, unless something else comes between them."""
    one, two, three = transfer(0, 0, 1), transfer(1, 0, 1), transfer(2, 0, 1)
    between = Computation(1, 0, 0)

    def sizes(order: Order, most: int) -> list[int]:
        sent = in_messages(order, lambda one: 4, most)
        return [len(each.transfers) for each in sent if isinstance(each, Message)]

    assert sizes([one, two, three], 8) == [2, 1]
    assert sizes([one, between, two, three], 64) == [1, 2]
    assert sizes([one, transfer(1, 0, 1, backward=True), three], 64) == [1, 1, 1]
