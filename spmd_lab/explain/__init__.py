"""Tables and reasons: questions that one asks an expansion."""

from spmd_lab.explain.collectives import CollectiveGroup, CollectiveGroups, CollectiveTable, GroupKey
from spmd_lab.explain.programs import collectives_of, flat_collective

__all__ = ["CollectiveGroup", "CollectiveGroups", "CollectiveTable", "GroupKey", "collectives_of", "flat_collective"]
