"""From one program to another: passes over the graphs that ranks run."""

from spmd_lab.rewrite.passes import rewrite

__all__ = ["rewrite"]
