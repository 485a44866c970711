"""The first stage: the program of one device, traced."""

from spmd_lab.trace.tracing import trace, trace_for_autograd
from spmd_lab.trace.values import Phase, Reference, Source, Structure, TracedGraph, TracedInput, TracedOutput

__all__ = [
    "Phase",
    "Reference",
    "Source",
    "Structure",
    "TracedGraph",
    "TracedInput",
    "TracedOutput",
    "trace",
    "trace_for_autograd",
]
