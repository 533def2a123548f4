"""Models that count the training sessions in one pass, instead of being trained."""
