"""Item vectors, and what belongs to items: co-clicks, attributes, trends, a session's own items."""
