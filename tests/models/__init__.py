"""Real models, with random weights."""
