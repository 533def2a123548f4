"""The demo shop: its catalogue, the process behind its clicks, and the best that any model can reach on them."""
