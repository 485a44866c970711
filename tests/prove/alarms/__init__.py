"""Right programs at random, to see that the proof never calls one wrong.

``python -m tests.prove.alarms --cases 2000`` proves so many, and counts false alarms.
"""
