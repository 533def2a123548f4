"""What measures the figures in docs/: python -m benchmarks.FOLDER.NAME in the repository."""
