"""The command about what became of answers: report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from posrec.cli.printing import Json, console, show

if TYPE_CHECKING:
    from posrec.evaluation.click_through import ClickThrough, Rate


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that posrec serve --feedback has written.")],
    as_json: Json = False,
) -> None:
    """Show the click-through of answers: by rank, by day and by run, with 95 % intervals.

    Example: posrec report feedback
    """
    from posrec.evaluation.click_through import click_through, read_feedback

    found = click_through(read_feedback(folder))
    show(found.as_json(), rates_table(found), as_json)
    if found.unmatched and not as_json:
        console.print(f"Not counted: {found.unmatched:,} clicks or purchases of items that were not shown.")


def rates_table(found: "ClickThrough") -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "shown", "clicked", "bought", "click-through", "95 % interval"):
        table.add_column(name, justify="right" if name else "left")

    def add(one: "Rate", name: str) -> None:
        interval = f"{one.low:.2%} to {one.high:.2%}"
        table.add_row(name, f"{one.shown:,}", f"{one.clicked:,}", f"{one.bought:,}", f"{one.rate:.2%}", interval)

    add(found.total, "all")
    for kind, rates in (("rank", found.by_rank), ("day", found.by_day), ("run", found.by_run)):
        table.add_section()
        for one in rates:
            add(one, f"{kind} {one.group}")
    return table
