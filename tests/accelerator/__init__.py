"""The test accelerator: a torch device type of its own, `toy`, in host memory.

See docs/design/test-accelerator.md.

from accelerator import ToyMachine, why_not

machine = ToyMachine.get()          # builds it, the first time; registers the device type
machine.restart(seed=3, late=True)
y = model.to("toy:0")(x.to("toy:0")).cpu()
assert not machine.faults()
"""

from accelerator.machine import COUNT, NAMES, ToyMachine, why_not

__all__ = ["COUNT", "NAMES", "ToyMachine", "why_not"]
