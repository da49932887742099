"""Tiles of a plane (or a line, or a volume) with as much of their surroundings as the model looks at.

In:    an input whose last dimensions are a plane, and a fully convolutional model.
Out:   windows of it, and one output into which their middles are written.
Start: `grid`, then `reach` and `halo_tiles`.
"""

from baechi.dispatch.tiles.halo_tiles import HaloTiles

__all__ = ["HaloTiles"]
