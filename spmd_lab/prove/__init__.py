"""The proof that a program equals the single-device one: it runs every rank, and knows nothing of how it was made."""

from spmd_lab.prove.report import Divergence, OutputError, VerifyReport
from spmd_lab.prove.verify import verify

__all__ = ["Divergence", "OutputError", "VerifyReport", "verify"]
