"""Tables of recommendations and explanations for the terminal."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from posrec.progress import printable
from posrec.recommend.results import (
    NORMALISATION,
    ClickEffect,
    Explanation,
    Recommendations,
)

INTENTION = " intention"  # the end of the names of parts that read the session
# The width of a name beside bars or many columns, so that a table fits into 80 columns.
NAME = 18
SHORT_NAME = 12
MOST_BARS = 3  # parts of a score that have room for bars


def short(part: str) -> str:
    """All parts of posrec-plus have to fit into 80 columns."""
    return "norm." if part == NORMALISATION else part.removesuffix(INTENTION)


def name_of(item: Explanation | ClickEffect, width: int | None = None) -> Text:
    # What is printed is cut to the width.
    name = Text(printable(item.title or item.item))
    if width is not None:
        name.truncate(width, overflow="ellipsis")
    return name


def bar(value: float, values: Iterable[float], width: int) -> Text:
    """It has the full width for the largest of all values, and is red below zero."""
    largest = max(map(abs, values)) or 1
    length = round(width * abs(value) / largest)
    return Text("█" * length, "red" if value < 0 else "green", no_wrap=True)


def recommendations_table(answer: Recommendations) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("item", no_wrap=True)
    has_titles = any(item.title for item in answer)
    if has_titles:
        table.add_column("title")
    table.add_column("clicks" if answer.popular else "score", justify="right")
    fields = (answer[0].fields or {}) if len(answer) else {}
    for name in fields:
        table.add_column(name)
    for position, item in enumerate(answer, start=1):
        mark = " pinned" if item.pinned else " new" if item.explored else ""
        cells = [f"{position}{mark}", item.item]
        if has_titles:
            cells.append(item.title or "")
        cells.append(f"{item.score:,.1f}" if answer.popular else f"{item.score:.3f}")
        for value in (item.fields or {}).values():
            cells.append("" if value is None else str(value))
        table.add_row(*cells)
    return table


def notes(answer: Recommendations) -> Iterator[str]:
    if answer.unknown:
        yield f"Skipped, since the model does not know them: {', '.join(answer.unknown)}."
    if not len(answer):
        yield (
            "No item is left to recommend. Check --filter, --allow and --deny; "
            "upper and lower case differ."
        )
    elif answer.unknown and answer.popular:
        yield "The model knows none of the clicks, so these are the most clicked items of late."
    elif answer.popular:
        yield "The session is empty, so these are the most clicked items of late."


def explanation_table(name: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column(name, no_wrap=True)
    return table


def parts_table(explanations: Sequence[Explanation]) -> Table:
    """A row for each item: its rank, probability and score, and the parts of the score."""
    names = list(explanations[0].parts)
    bars = len(names) <= MOST_BARS
    table = explanation_table("item")
    if explanations[0].probability is not None:
        table.add_column("chance", justify="right", no_wrap=True)
    table.add_column("score", justify="right", style="bold")
    for name in map(short, names):
        no_wrap = bars or " " not in name
        table.add_column(name, no_wrap=no_wrap, justify="left" if bars else "right")
    values = [value for why in explanations for value in why.parts.values()]
    for why in explanations:
        name_width = NAME if bars else SHORT_NAME
        cells: list[str | Text] = [str(why.rank), name_of(why, name_width)]
        if why.probability is not None:
            cells.append(f"{why.probability:.1%}")
        cells.append(f"{why.score:.3f}")
        for value in why.parts.values():
            cell = Text(f"{value:+7.3f}")
            if bars:
                cell.append(" ").append_text(bar(value, values, width=6))
            cells.append(cell)
        table.add_row(*cells)
    return table


def attributes_table(explanations: Sequence[Explanation]) -> Table:
    """A row for each item, its effects by size."""
    table = explanation_table("item")
    table.add_column("", overflow="fold")
    for why in explanations:
        effects = sorted(why.attributes, key=lambda effect: -abs(effect.effect))
        texts = [f"{printable(one.label)} {one.effect:+.3f}" for one in effects]
        table.add_row(str(why.rank), name_of(why, NAME), Text(", ".join(texts)))
    return table


def clicks_table(explanation: Explanation) -> Table:
    """A row for each click, the oldest first."""
    table = explanation_table("click")
    table.add_column("effect", no_wrap=True)
    readers = list(explanation.clicks[0].attention)
    has_room = len(readers) <= 2
    table.add_column("rank without", justify="right", no_wrap=has_room)
    for name in readers:
        head = f"{short(name)} reads" if name.endswith(INTENTION) else name
        table.add_column(head, no_wrap=has_room)
    effects = [click.effect for click in explanation.clicks if click.effect is not None]
    for position, click in enumerate(explanation.clicks, start=explanation.unread + 1):
        effect = Text("the only click", "dim")
        if click.effect is not None:
            length = bar(click.effect, effects, width=8)
            effect = Text.assemble(f"{click.effect:+7.3f} ", length)
        rank = "" if click.rank_without is None else f"{click.rank_without:,}"
        cells = [Text(str(position)), name_of(click, NAME), effect, Text(rank)]
        for weight in click.attention.values():
            length = bar(weight, [1], width=6 if has_room else 3)
            cells.append(Text.assemble(f"{weight:5.0%} ", length))
        table.add_row(*cells)
    return table


def drawn(explanations: Sequence[Explanation]) -> Iterator[RenderableType]:
    first = explanations[0]
    if first.parts:
        yield Text("What the score is made of", "bold")
        yield parts_table(explanations)
        yield ""
    if first.attributes:
        yield Text("What the item itself and its attributes add", "bold")
        yield attributes_table(explanations)
        yield ""
    head = Text("What each click did for ", "bold")
    rank = (f", rank {first.rank:,}", "bold")
    yield Text.assemble(head, name_of(first), rank)
    yield clicks_table(first)
    if first.repeat_chance is not None:
        yield Text(
            "The chance that the next click repeats an item of the session is "
            f"{first.repeat_chance:.0%}.",
            "dim",
        )
    if first.unread:
        yield Text(f"This model does not read {first.unread} earlier clicks.", "dim")
