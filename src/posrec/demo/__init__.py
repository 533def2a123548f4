"""The demo shop: its catalogue, the process that generates its clicks, and the best figures a model
can reach."""
