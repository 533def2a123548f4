"""compare, tune, the table of encodings, and the paper's experiments (reproduce/)."""
