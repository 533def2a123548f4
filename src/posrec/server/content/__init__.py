"""What is served, and read again when it changes on disk: runs, and the shop's files."""
