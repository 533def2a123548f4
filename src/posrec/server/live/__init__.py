"""What changes while the server runs: its runs, its rule files, and work in the background."""
