"""This machine's CPU as devices that are not emulated, and a graph measured for them."""

from architectures import Architecture

import baechi
from baechi import Cluster, Device
from baechi.records.datasheet import datasheet


def parts(n: int, of: str = "cpu") -> Cluster:
    """This machine's CPU as n devices that are not emulated."""
    return Cluster(
        tuple(
            Device(f"{of}/{index}", "CPU", **{**datasheet("CPU"), "memory_bytes": 2**30})
            for index in range(n)
        )
    )


def graph_of(architecture: Architecture, training: bool) -> baechi.LayerGraph:
    return baechi.profile(
        architecture.build(), architecture.inputs(), cluster=parts(1), training=training, source="estimate"
    )
