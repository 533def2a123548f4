"""How good a model's rankings are, and whether differences between models are significant."""
