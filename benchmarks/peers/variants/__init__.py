"""Models of posrec with what a library has, to find why its figures differ."""
