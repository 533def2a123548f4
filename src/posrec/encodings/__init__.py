"""Positional encodings and the theory that examines them."""
