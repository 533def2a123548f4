"""The engine: protocols, steps, checkpoints."""
