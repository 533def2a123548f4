"""The experiments of section 5 of the paper: run, tested and reported."""
