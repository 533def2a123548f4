"""Preparing a dataset: recipes over steps, in parts."""
