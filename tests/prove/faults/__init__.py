"""Ways to break one thing in a right program, and what the proof makes of it.

``python -m tests.prove.faults`` breaks every specimen in every way and prints a table.
"""

from tests.prove.faults.bank import KINDS, Fault, faults_of, sampled
from tests.prove.faults.outcome import Outcome, outcome_of

__all__ = ["KINDS", "Fault", "Outcome", "faults_of", "outcome_of", "sampled"]
