"""Blocks that models share; each imports torch alone."""
