"""Tiny real architectures on which a distributed model must equal the plain one bit for bit."""

from architectures.base import Architecture, loss_of
from architectures.hugging_face import HELD_IN, OTHERS
from architectures.own import OWN

__all__ = ["HELD_IN", "OTHERS", "OWN", "Architecture", "loss_of"]
