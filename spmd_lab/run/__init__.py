"""Real ranks: the trainable module."""

from spmd_lab.run.distribute import distribute
from spmd_lab.run.module import DistributedModule

__all__ = ["DistributedModule", "distribute"]
