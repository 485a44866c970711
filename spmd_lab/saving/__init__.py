"""Programs in files: saved once, bound to a real mesh wherever they are loaded."""

from spmd_lab.saving.plain import graph_from_plain, graph_to_plain
from spmd_lab.saving.saved import Port, SavedProgram, load, save

__all__ = ["Port", "SavedProgram", "graph_from_plain", "graph_to_plain", "load", "save"]
