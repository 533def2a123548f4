"""Tables of `posrec encodings` for the terminal."""

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from posrec.encodings.theory import (
    PAPER,
    Statement,
    differences,
    reason,
    spans,
    verdicts,
)
from posrec.experiments.encodings import EncodingRow

COLUMNS = {
    "forward": "forward-\naware",
    "backward": "backward-\naware",
    "unique": "unique\n(pos, len)",
    "unique_within_length": "unique in\na session",
    "linear": "linear",
}


def encodings_table(rows: list[EncodingRow]) -> Group:
    headings = (*COLUMNS.values(), "A", "B")
    others = [Column(heading, no_wrap=True) for heading in headings]
    encoding = Column("encoding", overflow="fold")
    table = Table(encoding, *others, box=None, padding=(0, 1), header_style="bold")
    for row in rows:
        cells = [cell(row, column) for column in COLUMNS]
        forward = spans(row.analysis.forward.dimensions)
        backward = spans(row.analysis.backward.dimensions)
        table.add_row(row.label, *cells, forward, backward)
    return Group(table, "", *notes(rows))


def cell(row: EncodingRow, column: str) -> Text:
    """What was found and what the paper says: `yes = yes`, `yes ≠ no`, or only `yes`."""
    by_definition = verdicts(row.analysis)[column]
    in_paper = getattr(PAPER[row.encoding], column)
    word = yes_or_no(by_definition)
    if column == "linear" and row.analysis.linear.trivial:
        word = "trivial"
    if in_paper is None:
        return Text(word)
    sign, style = ("=", "") if in_paper == by_definition else ("≠", "bold red")
    return Text(f"{word} {sign} {yes_or_no(in_paper)}", style)


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def notes(rows: list[EncodingRow]) -> list[str]:
    first = rows[0].analysis
    lines = [
        "yes = yes: what was found, and what the paper says; ≠ where they differ; one word where "
        f"the paper says nothing. Sessions of 1 to {first.max_length} clicks, d = {first.d}; "
        "learned encodings have random tables, runs their own. A: dimensions that depend only on "
        "the position from the first click; B: only on the position from the last click. Trivial: "
        "any values would fit. rpe adds nothing to the items; for its bias see --theory."
    ]
    for row in rows:
        paper = PAPER[row.encoding]
        for column in differences(row.analysis, paper):
            finding = f"{row.label}: {reason(row.analysis, column)}"
            lines.append(f"{finding}. The paper ({paper.source}) says otherwise.")
    return lines


def statements_table(statements: list[Statement]) -> Table:
    headings = ("statement", "holds", "says", "because")
    table = Table(*headings, box=None, padding=(0, 1), header_style="bold")
    for statement in statements:
        style = "" if statement.holds else "bold red"
        holds = Text(yes_or_no(statement.holds), style)
        table.add_row(statement.name, holds, statement.says, statement.evidence)
    return table
