"""Other libraries on the same samples."""
