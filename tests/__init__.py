"""The tests; what several of them share is imported from here."""
