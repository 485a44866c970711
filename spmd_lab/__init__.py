"""spmd_lab: see, prove and run the program that each device of a mesh will execute."""

from spmd_lab.layout import Layout
from spmd_lab.mesh import Mesh

__all__ = ["Layout", "Mesh"]
