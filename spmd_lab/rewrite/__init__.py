"""From one program to another: passes over the graphs that ranks run."""

from spmd_lab.rewrite.passes import PASSES, rewrite

__all__ = ["PASSES", "rewrite"]
