"""From a dataset to a run: fit, refit, evaluate, warm start."""
