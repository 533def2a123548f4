"""`posrec report`: what became of the answers of `posrec serve --feedback`."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Column, Table
from typer import Argument, Option

from posrec.cli.options import Json
from posrec.cli.printing import console, plain_table, right, say, show, warn
from posrec.errors import plural

if TYPE_CHECKING:
    from posrec.evaluation.click_through import ClickThrough, Group

MOST_OWN_EVENTS = 20  # of a shop, the most frequent ones
FIGURES_WIDTH = 60  # characters of a line before its plot
SPLIT_BY = (
    "Send the visitor's id as `split_by` with each request, "
    "so that a visitor stays with one run."
)
OWN_VISITOR = (
    "each counts as a visitor of its own, so the intervals are too narrow. "
    "Send `visitor` with feedback."
)


def report(
    folder: Path = Argument(
        ..., help="A folder that posrec serve --feedback has written."
    ),
    by: Literal["run", "day", "rank", "explored"] = Option(
        "run",
        help="Compare runs, days (UTC), ranks in the answer, or the new items of `explore` "
        "and others.",
    ),
    measure: Literal["clicks", "carts", "purchases", "value"] = Option(
        "clicks",
        help="What decides: clicks per answer; or carts, purchases or their value per visitor.",
    ),
    since: datetime | None = Option(
        None,
        formats=["%Y-%m-%d"],
        metavar="DAY",
        help="Count answers from this day on (UTC).",
    ),
    as_json: Json = False,
) -> None:
    """Show what became of answers, with 95 % intervals over visitors, and say which of several runs
    is better.

    Example: posrec report feedback
    posrec report feedback --measure value --since 2026-11-01
    posrec report feedback --by day
    """
    from posrec.evaluation.click_through import ClickThrough, per_unit, unusual_days
    from posrec.server.feedback.files import read_feedback

    feedback = ClickThrough(read_feedback(folder), since and since.date())
    if as_json:
        show(feedback.as_json(measure), None, as_json)
        return
    if by == "run":
        console.print(runs_table(feedback))
        alone = len(feedback.answers) - sum(run.answers for run in feedback.runs())
        if alone:
            answers = plural(alone, "answer")
            say(f"{answers} from when only one of the two runs was shown are left out.")
        for difference in feedback.differences(measure):
            say(f"\n{difference.sentence()}")
            if difference.visitors_of_both:
                visitors = plural(difference.visitors_of_both, "visitor")
                say(f"{visitors} had answers of both. {SPLIT_BY}")
    else:
        groups = feedback.by(by)
        console.print(plot_table(groups, by, measure, per_unit(measure)))
        if by == "day":
            for day in unusual_days(groups, measure):
                warn(f"warning: {day.sentence()}")
    for note in notes(feedback):
        say(note)


def runs_table(feedback: "ClickThrough") -> Table:
    """A column for each run. Rows of what nobody reports are left out."""
    from posrec.evaluation.click_through import MEASURES, per_unit

    runs = feedback.runs()
    table = plain_table("", padding=(0, 3, 0, 0))
    fingerprints = feedback.fingerprints()
    for run in runs:
        *before, latest = fingerprints[run.group]
        note = f" and {len(before)} before" if before else ""
        table.add_column(f"{run.group}\n{latest}{note}", justify="right")
    reported = [name for name in MEASURES if any(getattr(run, name) for run in runs)]
    reported = reported or ["clicks"]
    for name in ("visitors", "answers", *reported):
        digits = 2 if name == "value" else 0
        table.add_row(name, *(f"{getattr(run, name):,.{digits}f}" for run in runs))
    events = sum((Counter(run.own) for run in runs), Counter())
    for event, _ in events.most_common(MOST_OWN_EVENTS):
        table.add_row(event, *(f"{run.own.get(event, 0):,}" for run in runs))
    for name in reported:
        table.add_row(per_unit(name), *(str(run.ratios[name]) for run in runs))
    return table


def plot_table(groups: Sequence["Group"], by: str, measure: str, title: str) -> Table:
    """A line for each group: its figure, and a plot of the figure and its interval."""
    name = Column(by, no_wrap=True)
    figures = right("visitors", "answers", title)
    table = plain_table(name, *figures, Column(no_wrap=True))
    width = min(max(console.width - FIGURES_WIDTH, 10), 40)
    ratios = [group.ratios[measure] for group in groups]
    intervals = [ratio.interval or (ratio.mean, ratio.mean) for ratio in ratios]
    most = max(high for _, high in intervals) or 1.0
    for group, ratio, (low, high) in zip(groups, ratios, intervals, strict=True):
        ends = (low, ratio.mean, high)
        start, middle, end = (round(value / most * (width - 1)) for value in ends)
        plot = f"|{' ' * start}{'-' * (middle - start)}o{'-' * (end - middle)}"
        counts = (f"{group.visitors:,}", f"{group.answers:,}")
        table.add_row(group.group, *counts, str(ratio), plot)
    return table


def notes(feedback: "ClickThrough") -> list[str]:
    """What was not counted, or makes the figures less certain than they look."""
    lines = []
    if feedback.unmatched:
        events = f"{feedback.unmatched:,} clicks or other events"
        lines.append(f"Not counted: {events} of items that were not shown.")
    if feedback.without_visitor:
        answers = plural(feedback.without_visitor, "answer")
        lines.append(f"{answers} without a visitor or session: {OWN_VISITOR}")
    if feedback.without_value and feedback.total().value:
        purchases = plural(feedback.without_value, "purchase")
        lines.append(f"{purchases} without a value count as 0.")
    return lines
