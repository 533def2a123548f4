"""A run over HTTP."""
