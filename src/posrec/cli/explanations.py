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
    Recommendation,
    Recommendations,
)

INTENTION = " intention"  # how the names of the parts end that read the session
# cells for a name beside bars or many columns, so that a table fits into 80 columns
NAME = 18
SHORT_NAME = 12
MOST_BARS = 3  # parts of a score that have room for bars


def bar(value: float, values: Iterable[float], width: int) -> Text:
    """A bar for a value, as long as `width` for the largest of all values; red if the value is
    below zero.

    >>> bar(-2, [1, -2, 4], width=6).plain
    '███'
    """
    largest = max(map(abs, values)) or 1
    return Text(
        "█" * round(width * abs(value) / largest),
        "red" if value < 0 else "green",
        no_wrap=True,
    )


def recommendations_table(answer: Recommendations) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("item", no_wrap=True)
    titled = any(one.title for one in answer)
    if titled:
        table.add_column("title")
    table.add_column("clicks" if answer.popular else "score", justify="right")
    fields = list((answer[0].fields or {}) if len(answer) else {})
    for name in fields:
        table.add_column(name)
    for place, one in enumerate(answer, start=1):
        score = f"{one.score:,.0f}" if answer.popular else f"{one.score:.3f}"
        values = [
            "" if value is None else str(value) for value in (one.fields or {}).values()
        ]
        titles = [one.title or ""] if titled else []
        mark = " pinned" if one.pinned else " new" if one.explored else ""
        table.add_row(f"{place}{mark}", one.item, *titles, score, *values)
    return table


def notes(answer: Recommendations) -> Iterator[str]:
    if answer.unknown:
        yield f"Skipped, since the model does not know them: {', '.join(answer.unknown)}."
    if not len(answer):
        yield "No item is left to recommend. Check --filter, --allow and --deny; upper and lower case differ."
    elif answer.unknown and answer.popular:
        yield "The model knows none of the clicked items, so these are the most clicked items."
    elif answer.popular:
        yield "The session is empty, so these are the most clicked items."


def parts_table(explanations: Sequence[Explanation]) -> Table:
    """A row for each item: its rank, probability and score, and the parts of the score."""
    names = list(explanations[0].parts)
    bars = len(names) <= MOST_BARS
    chances = explanations[0].probability is not None
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("item", no_wrap=True)
    if chances:
        table.add_column("chance", justify="right", no_wrap=True)
    table.add_column("score", justify="right", style="bold")
    for name in names:
        table.add_column(
            short(name),
            no_wrap=bars or " " not in short(name),
            justify="left" if bars else "right",
        )
    values = [value for one in explanations for value in one.parts.values()]
    for one in explanations:
        chance = [f"{one.probability:.1%}"] if one.probability is not None else []
        cells = [Text(f"{one.parts[name]:+7.3f}") for name in names]
        if bars:
            for name, cell in zip(names, cells, strict=True):
                cell.append(" ").append_text(bar(one.parts[name], values, width=6))
        table.add_row(
            str(one.rank),
            name_of(one, NAME if bars else SHORT_NAME),
            *chance,
            f"{one.score:.3f}",
            *cells,
        )
    return table


def clicks_table(explanation: Explanation) -> Table:
    """A row for each click, the oldest first."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("click", no_wrap=True)
    effects = [click.effect for click in explanation.clicks if click.effect is not None]
    table.add_column("effect", no_wrap=True)
    readers = list(explanation.clicks[0].attention)
    roomy = len(readers) <= 2
    table.add_column("rank without", justify="right", no_wrap=roomy)
    width = 6 if roomy else 3
    for name in readers:
        table.add_column(
            f"{short(name)} reads" if name.endswith(INTENTION) else name, no_wrap=roomy
        )
    for place, click in enumerate(explanation.clicks, start=explanation.unread + 1):
        effect = Text("the only click", "dim")
        if click.effect is not None:
            effect = Text.assemble(
                f"{click.effect:+7.3f} ", bar(click.effect, effects, width=8)
            )
        read = (
            Text.assemble(
                f"{click.attention[n]:5.0%} ", bar(click.attention[n], [1], width)
            )
            for n in readers
        )
        rank = "" if click.rank_without is None else f"{click.rank_without:,}"
        table.add_row(str(place), name_of(click, NAME), effect, rank, *read)
    return table


def drawn(explanations: Sequence[Explanation]) -> Iterator[RenderableType]:
    if explanations[0].parts:
        yield Text("What the score is made of", "bold")
        yield parts_table(explanations)
        yield ""
    first = explanations[0]
    yield Text.assemble(
        ("What each click did for ", "bold"),
        name_of(first),
        (f", rank {first.rank:,}", "bold"),
    )
    yield clicks_table(first)
    if first.repeat_chance is not None:
        yield Text(
            f"The chance that the next click repeats an item of the session is {first.repeat_chance:.0%}.",
            "dim",
        )
    if first.unread:
        yield Text(f"This model does not read {first.unread} earlier clicks.", "dim")


def short(part: str) -> str:
    """All parts of posrec-plus have to fit into 80 columns."""
    return "norm." if part == NORMALISATION else part.removesuffix(INTENTION)


def name_of(
    one: Recommendation | Explanation | ClickEffect, width: int | None = None
) -> Text:
    name = Text(
        printable(one.title or one.item)
    )  # so that it is cut to the width of what is printed
    if width is not None:
        name.truncate(width, overflow="ellipsis")
    return name
