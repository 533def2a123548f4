"""Section 3 as a table: what the definitions give for each encoding, beside what the paper says of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from posrec.encodings.awareness import Analysis, analyse
from posrec.encodings.table import examined_names
from posrec.encodings.theory import PAPER, Statement, differences, verdicts, where
from posrec.experiments.trained_encoding import TrainedEncoding
from posrec.progress import Progress, SilentProgress

COLUMNS = {
    "forward": "forward-\naware",
    "backward": "backward-\naware",
    "unique": "unique\n(pos, len)",
    "unique_within_length": "unique in\na session",
    "linear": "linear",
}


@dataclass(frozen=True)
class Row:
    label: str
    encoding: str
    found: Analysis


def examine(
    max_length: int, d: int, trained: Sequence[TrainedEncoding] = (), progress: Progress | None = None
) -> list[Row]:
    """Every scheme up to max_length, then each trained run up to the rows of its own table."""
    progress, names = progress or SilentProgress(), examined_names()
    rows: list[Row] = []
    for name in names:
        progress.update("Examining", len(rows), len(names) + len(trained), name)
        rows.append(Row(name, name, analyse(name, max_length, d)))
    for one in trained:
        progress.update("Examining", len(rows), len(names) + len(trained), str(one.run))
        rows.append(Row(str(one.run), one.name, analyse(one.scheme, one.rows, one.d)))
    return rows


def as_json(rows: list[Row]) -> dict[str, Any]:
    return {row.label: entry(row) for row in rows}


def entry(row: Row) -> dict[str, Any]:
    found = row.found
    return {
        "encoding": row.encoding,
        **verdicts(found),
        "linear_residual": found.linear.residual,
        "linear_trivial": found.linear.trivial,
        "paper": asdict(PAPER[row.encoding]),
        "differs": list(differences(found, PAPER[row.encoding])),
        "max_length": found.max_length,
        "d": found.d,
        "evidence": {
            "forward": asdict(found.forward),
            "backward": asdict(found.backward),
            "collision": asdict(found.collision) if found.collision else None,
            "collision_within_length": asdict(found.collision_within_length) if found.collision_within_length else None,
        },
    }


def as_table(rows: list[Row]) -> Group:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("encoding", overflow="fold")
    for heading in COLUMNS.values():
        table.add_column(heading, no_wrap=True)
    table.add_column("A", no_wrap=True)
    table.add_column("B", no_wrap=True)
    for row in rows:
        dimensions = (spans(row.found.forward.dimensions), spans(row.found.backward.dimensions))
        table.add_row(Text(row.label), *(cell(row, column) for column in COLUMNS), *dimensions)
    return Group(table, "", *notes(rows))


def cell(row: Row, column: str) -> Text:
    """What was found, a mark, what the paper says: `yes = yes`, `yes ≠ no`, or `yes` alone where it says nothing."""
    found, said = verdicts(row.found)[column], getattr(PAPER[row.encoding], column)
    trivial = column == "linear" and row.found.linear.trivial
    word = "trivial" if trivial else spoken(found)
    if said is None:
        return Text(word)
    return Text(f"{word} = {spoken(said)}") if said == found else Text(f"{word} ≠ {spoken(said)}", "bold red")


def spoken(value: bool) -> str:
    return "yes" if value else "no"


def spans(dimensions: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) -> "0-2, 5"."""
    runs: list[list[int]] = []
    for dimension in dimensions:
        if runs and runs[-1][-1] == dimension - 1:
            runs[-1].append(dimension)
        else:
            runs.append([dimension])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "-"


def notes(rows: list[Row]) -> list[Text]:
    lines = [
        "What was found = what the paper says, ≠ where they differ; alone where the paper says nothing. Lengths 1 to "
        f"{rows[0].found.max_length}, d = {rows[0].found.d}; learned encodings on random tables, runs on their own. "
        "A, B: the dimensions that depend on the position, or on the position from the end, alone. Trivial: any values "
        "would fit. rpe adds nothing to the items; for its bias see --theory."
    ]
    for row in rows:
        for column in differences(row.found, PAPER[row.encoding]):
            lines.append(f"{row.label}: {reason(row, column)} The paper ({PAPER[row.encoding].source}) says otherwise.")
    return [Text(line) for line in lines]


def reason(row: Row, column: str) -> str:
    found = row.found
    if column == "linear":
        return f"the best matrix to move it on leaves a worst residual of {found.linear.residual:.1e}."
    if column in ("unique", "unique_within_length"):
        pair = found.collision if column == "unique" else found.collision_within_length
        return f"the same for {where(pair)}." if pair else "all are unique."
    awareness = found.forward if column == "forward" else found.backward
    if awareness.holds:
        return f"{column}-aware in dimensions {spans(awareness.dimensions)}."
    return f"not {column}-aware, compare {where(awareness.collision or awareness.clashes[0])}."


def statements_json(worked: list[Statement]) -> list[dict[str, Any]]:
    return [asdict(one) for one in worked]


def statements_table(worked: list[Statement]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("statement", "holds", "says", "because"):
        table.add_column(heading)
    for one in worked:
        # Text, not str: "P[pos]" must not be read as markup.
        mark = Text(spoken(one.holds), "" if one.holds else "bold red")
        table.add_row(Text(one.name), mark, Text(one.says), Text(one.evidence))
    return table
