"""The bench of peers: plans beside those that other systems make, by one clock.

In:    models and clusters that the page `docs/peers.md` fixes; torch's own schedules.
Out:   a row for each: our step beside the same model in even stretches, by the schedules of the literature.
Start: `subjects`, `schedules`, then `measuring`.
"""

from benches.peers.measuring import measure

__all__ = ["measure"]
