"""The demo shop: its catalogue, its clicks, and the best figures a model can reach."""
