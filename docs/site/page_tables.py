"""A table as mdformat writes it, so that generated and formatted pages are the same."""

from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    rule = "| " + " | ".join(["--"] * len(rows[0])) + " |"
    return "\n".join([head, rule, *body])
