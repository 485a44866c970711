"""Rules that users add for operators of theirs, or ours: read, tried on simulated ranks, and registered."""

from spmd_lab.teach.register import RegisteredRule, register_rule

__all__ = ["RegisteredRule", "register_rule"]
