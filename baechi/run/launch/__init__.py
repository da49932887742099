"""The order and the thread in which layers launch.

In:    tasks, as the code reaches them, and the plan's order.
Out:   launches in the plan's order, by the host or by threads.
Start: `schedule`, then `needs` and `pending`.
"""
