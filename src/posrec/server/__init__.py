"""The HTTP server: recommendations of a run over HTTP."""
