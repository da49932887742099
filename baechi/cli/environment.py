"""What `baechi env` shows: what a report of a defect should say of this machine."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from baechi import __version__
from baechi.backend.real.link_cache import with_kept
from baechi.errors import BaechiError
from baechi.records.cluster import Cluster
from baechi.torchlib.private import lookup, patches
from baechi.units import format_bytes, format_seconds

_PACKAGES = (
    "numpy", "networkx", "pulp", "highspy", "rich", "typer", "safetensors", "numba", "transformers",
    "accelerate", "lightning",
)  # fmt: skip

_PREFIXES = ("BAECHI_", "CUDA_", "HIP_", "NCCL_", "PYTORCH_", "TORCH", "OMP_", "NUMBA_")


def environment() -> dict[str, dict[str, str]]:
    """Versions, devices, what was measured of them, and what of torch is replaced or missing.

    Returns:
        By heading, values by name.
    """
    return {
        "versions": {
            "baechi": __version__,
            "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
            "torch": f"{torch.__version__}, for {_built_for()}",
            **{name: _version(name) for name in _PACKAGES},
        },
        "devices": _devices(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if _matters(name)},
        "torch's names": {
            "replaced while baechi runs": ", ".join(patches.replaceable()),
            **{name: f"missing: {purpose}" for name, purpose in lookup.missing_names().items()},
        },
    }


def _built_for() -> str:
    if torch.version.cuda is not None:
        return f"CUDA {torch.version.cuda}"
    return "the CPU" if torch.version.hip is None else f"ROCm {torch.version.hip}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, str]:
    found = {"host": f"{os.cpu_count()} CPUs, torch uses {torch.get_num_threads()} threads"}
    try:
        cluster = Cluster.discover(measure=False)
    except BaechiError as error:
        return found | {"accelerators": str(error).partition("\n")[0]}
    for device in cluster.devices:
        found[device.name] = f"{device.kind}, {format_bytes(device.memory_bytes)} for plans"
    kept = with_kept(cluster)
    if kept is None:
        return found | {"links": "not measured yet; baechi links does"}
    for (source, target), link in kept.links.items():
        rate = f"{format_bytes(int(link.bytes_per_s))}/s after {format_seconds(link.latency_s)}"
        found[f"{source} to {target}"] = rate if link.peer else f"{rate}, through the host"
    if kept.host is not None:
        found["torch's part of an operator"] = format_seconds(kept.host.operator_s)
    return found


def _matters(name: str) -> bool:
    return name in ("RANK", "WORLD_SIZE") or name.startswith(_PREFIXES)
