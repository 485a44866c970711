"""Tables and reasons: questions that one asks an expansion."""

from spmd_lab.explain.collectives import CollectiveGroup, CollectiveGroups, CollectiveTable, GroupKey

__all__ = ["CollectiveGroup", "CollectiveGroups", "CollectiveTable", "GroupKey"]
