"""The search of `auto`, in machine code where it counts.

    rounds             from which placements, and how long
    annealing          one search from one placement; `changes` is its inner loop
    bands              partitions to begin with
    estimate           what a placement takes: `dispatch` forward, `replay` backward
    tables, room       what they look up: seconds and ways; bytes
    compiled, heap     how inner loops become machine code, and the heap that they share

Read `estimate`, `changes` and `rounds`, in this order.
"""

from baechi.place.search.rounds import Rounds

__all__ = ["Rounds"]
