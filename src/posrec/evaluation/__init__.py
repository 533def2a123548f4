"""How good a model's rankings are, and how sure we are of it."""
