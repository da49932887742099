"""In which order layers launch, and which must wait for their turn; no torch.

In:    a `Plan`.
Out:   for each device whose turn it is, and the layers that wait.
Start: `criteria`, then `turns`.
"""

from baechi.order.criteria import CRITERIA, Criterion, waiting_layers
from baechi.order.launch_order import LaunchOrder

__all__ = ["CRITERIA", "Criterion", "LaunchOrder", "waiting_layers"]
