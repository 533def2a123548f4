"""`python -m posrec` is the `posrec` command."""

from posrec.cli import main

main()
