"""Training: the loop over epochs, steps on a CPU and a GPU, losses, settings, checkpoints."""
