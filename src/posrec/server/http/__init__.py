"""HTTP: what the server checks and limits, its routes' types, and its processes."""
