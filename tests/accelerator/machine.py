"""Building the extension, and asking the machine behind it."""

import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.utils import cpp_extension

COUNT = 4
NAMES = tuple(f"toy:{index}" for index in range(COUNT))

_HERE = Path(__file__).parent
_WHOLE = _HERE / "whole.cpp"


@functools.cache
def why_not() -> str:
    """Why the test accelerator cannot be built here; empty if it can."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "no C++ compiler: install g++ or clang"
    if not cpp_extension.is_ninja_available():
        return 'no ninja: pip install "baechi[dev]"'
    return ""


class ToyMachine:
    """The machine. Only one can be in a process; `get` makes it."""

    @staticmethod
    @functools.cache
    def get() -> "ToyMachine":
        """Build the extension if it was not built before, load it, register the device type."""
        from accelerator import torch_module

        os.environ["TOY_DEVICES"] = str(COUNT)
        folder = _build_folder()
        with (folder / "building").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go of when a process dies, unlike torch's own
            (folder / "lock").unlink(missing_ok=True)
            cpp_extension.load(
                "toy_accelerator",
                [str(_WHOLE)],
                build_directory=str(folder),
                extra_cflags=["-O1", "-std=c++20"],
                is_python_module=False,
            )
        torch_module.register()
        return ToyMachine()

    def restart(self, *, seed: int = 0, late: bool = True) -> None:
        """Wait for all devices, and forget what was seen.

        Args:
            seed: of the order in which queued work runs.
            late: whether it is queued; else it runs at once, and only the clocks judge.
        """
        torch.ops.toy.restart(seed, late)
        torch.ops.toy.keep_issued(False)

    def faults(self) -> list[str]:
        """Accesses that nothing orders, memory let go of while a stream may use it, kernels that failed."""
        torch.ops.toy.faults()  # memory that could be handed out now: the host has waited for nothing yet
        self.synchronize()
        return list(torch.ops.toy.faults())

    def waits(self) -> list[str]:
        """Where the host waited for a device since `restart`."""
        return list(torch.ops.toy.waits())

    def issued(self) -> list[str]:
        """What was put on streams since `keep_issued`, in this order: `"1/s4 aten::mm"`."""
        return list(torch.ops.toy.issued())

    def keep_issued(self) -> None:
        """Note what is put on streams from now on."""
        torch.ops.toy.keep_issued(True)

    def unforeseen(self) -> dict[str, str]:
        """Operators for which the host had to wait, since only running them tells what they return."""
        return dict(torch.ops.toy.unforeseen())

    def limit(self, device: int, size_bytes: int | None) -> None:
        """How much memory a device has; None: no limit."""
        torch.ops.toy.limit(device, -1 if size_bytes is None else size_bytes)

    def set_times(
        self,
        *,
        launch_s: float = 1e-6,
        kernel_s: float = 2e-6,
        bytes_per_s: float = 1e10,
        kernels: Mapping[str, float] | None = None,
        links: Mapping[tuple[int, int], tuple[float, float]] | None = None,
    ) -> None:
        """What things take by the logical clocks, until `restart`.

        Args:
            launch_s: of the host, for each kernel and copy that it issues.
            kernel_s, bytes_per_s: of a kernel, and for the memory that it touches.
            kernels: seconds by operator, such as `"aten::addmm"`, instead of the two.
            links: latency and bytes a second by source and target, the host being -1. A copy without a
                link takes what a kernel takes.
        """
        kernels, links = kernels or {}, links or {}
        ends, ways = list(zip(*links, strict=True)) or [(), ()], list(links.values())
        torch.ops.toy.set_times(
            launch_s,
            kernel_s,
            bytes_per_s,
            list(kernels),
            list(kernels.values()),
            *map(list, ends),
            [latency_s for latency_s, _ in ways],
            [rate for _, rate in ways],
        )

    def host_s(self) -> float:
        """The host's logical clock."""
        return float(torch.ops.toy.host_s())

    def host_spends(self, seconds: float) -> None:
        """Let the host take time for something else than launches."""
        torch.ops.toy.host_spends(seconds)

    def synchronize(self) -> None:
        """Wait for all devices."""
        for index in range(COUNT):
            torch.accelerator.synchronize(index)


def _build_folder() -> Path:
    """Where the extension is built: a folder for these sources and this torch."""
    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted(_HERE.glob("*.[ch]*")):
        digest.update(file.read_bytes())
    cache = Path(os.environ.get("BAECHI_TOY_CACHE", Path(tempfile.gettempdir()) / "baechi-test-accelerator"))
    folder = cache / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder
