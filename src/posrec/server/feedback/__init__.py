"""What became of answers: written while the server runs, read by reports, erased on demand."""
