"""The results of a Recommender: recommendations and explanations, in raw item ids.

How they are sent over HTTP is decided in server/schemas.py alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from posrec.errors import plural

if TYPE_CHECKING:
    import polars as pl

# The part of a log probability that is the same for all items of a session.
NORMALISATION = "normalisation"


# Not frozen like the others: freezing makes it four times slower to create, and the server creates
# 20 per request.
@dataclass(slots=True, unsafe_hash=True)
class Recommendation:
    """One recommended item.

    Attributes:
        item: The raw item id.
        score: The model's score; the higher, the better. With posrec-plus it is the logarithm of
            the probability that the item is clicked next; scores of other models compare the items
            of one session only. For popular items it counts the clicks in training, old ones
            less; for similar items it is a cosine.
        title: The item's title, where the vocabulary has one.
        fields: The item's columns that were asked for, by name; None if none were.
        pinned: Whether the request pinned it.
        explored: Whether it is there because it is new (`explore`).
    """

    item: str
    score: float
    title: str | None = None
    fields: dict[str, Any] | None = field(default=None, hash=False)
    pinned: bool = False
    explored: bool = False

    def as_json(self) -> dict[str, Any]:
        """`fields`, `pinned` and `explored` only if they were asked for."""
        shown = asdict(self)
        if self.fields is None:
            del shown["fields"]
        for name in ("pinned", "explored"):
            if not shown[name]:
                del shown[name]
        return shown


@dataclass(frozen=True, repr=False)
class Recommendations:
    """The best items for one session, the best first. It can be used like a list.

    Attributes:
        items: The recommended items.
        unknown: The session's clicks on items that the model does not know. They were skipped.
        popular: Whether no click was known. The items are then the most clicked ones of late, and
            scores count their clicks, old ones less (the setting `half_life`).

    Example:
        >>> items = (Recommendation("sku-9", 4.2), Recommendation("sku-3", 3.1))
        >>> answer = Recommendations(items, unknown=("sku-0",))
        >>> answer[0].item, len(answer), [item.score for item in answer], answer.unknown
        ('sku-9', 2, [4.2, 3.1], ('sku-0',))
    """

    items: tuple[Recommendation, ...]
    unknown: tuple[str, ...] = ()
    popular: bool = False

    def __iter__(self) -> Iterator[Recommendation]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Recommendation:
        return self.items[position]

    def __repr__(self) -> str:
        items = [f"{item.item} {item.score:.4g}" for item in self.items[:3]]
        if len(self) > 3:
            items.append("...")
        text = f"{plural(len(self), 'item')}: {', '.join(items)}"
        if self.unknown:
            text += f"; {len(self.unknown)} unknown"
        if self.popular:
            text += "; popular"
        return f"Recommendations({text})"

    def to_frame(self) -> "pl.DataFrame":
        """A row for each item, the best first: rank, item, score, title, and the `fields` that were
        asked for. A field with one of these names becomes `item_rank`, for example."""
        return ListOfRecommendations([self]).to_frame().drop("session")

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists, for `json.dumps`."""
        return {**vars(self), "items": [item.as_json() for item in self.items]}


class ListOfRecommendations(list[Recommendations]):
    """The recommendations for each of many sessions, in their order."""

    def to_frame(self) -> "pl.DataFrame":
        """The rows of `Recommendations.to_frame` for every session, whose place in the list, from
        0, is in the column `session`. A session without items has no row."""
        import polars as pl

        rows = [
            (session, rank, item.item, item.score, item.title)
            for session, answer in enumerate(self)
            for rank, item in enumerate(answer, start=1)
        ]
        schema = {
            "session": pl.Int64,
            "rank": pl.Int64,
            "item": pl.String,
            "score": pl.Float64,
            "title": pl.String,
        }
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        fields = [item.fields or {} for answer in self for item in answer]
        columns = []
        for name in fields[0] if fields else ():
            values = [values[name] for values in fields]
            column = f"item_{name}" if name in schema else name
            columns.append(pl.Series(column, values, strict=False))
        return frame.with_columns(columns)


@dataclass(frozen=True, repr=False)
class RankedCandidates(Recommendations):
    """Given items in the order of their scores.

    Attributes:
        unknown_candidates: Those that the model does not know; they have no score.
    """

    unknown_candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClickEffect:
    """What one click did to the score of an item.

    Attributes:
        item: The raw id of the clicked item.
        title: Its title, where the vocabulary has one.
        effect: The score minus the score without this click; None for the only click.
        rank_without: The explained item's rank without this click; None for the only click.
        attention: How much each part of the session's vector attends to the click (PosRec and
            posrec-plus). "clicked before" is the chance that this click's item is clicked again,
            given that an item of the session is (posrec-plus).
    """

    item: str
    title: str | None
    effect: float | None
    rank_without: int | None
    attention: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AttributeEffect:
    """What an attribute of an item adds to its score.

    Attributes:
        column: The column; None for what its attributes do not explain.
        label: The column, or such as "same category", "similar price" and "words of title" if an
            item of the session has its value, range or words too (docs/scores.md).
        effect: The effects add up to the parts last item, latest and initial intention.
    """

    column: str | None
    label: str
    effect: float


@dataclass(frozen=True)
class Explanation:
    """Why an item has its score.

    Attributes:
        item: The raw id of the explained item.
        title: Its title, where the vocabulary has one.
        score: Its score.
        rank: Its rank among all items; 1 is the best.
        parts: What the last item, the latest and the initial intention contribute (PosRec and
            posrec-plus). With posrec-plus also "clicked before", what the item gains or loses by
            being in the session, and "normalisation", the same for all items. They add up to the
            score. Empty for other models.
        clicks: The effect of each click that the model reads, the oldest first.
        unread: The number of earlier clicks, which the model does not read.
        unknown: The session's clicks on items that the model does not know. They were skipped.
        probability: Of a click on the item next, where the score is its logarithm; else None.
        repeat_chance: The chance that the next click repeats an item of the session, likewise.
        attributes: What each attribute adds, in a run that was trained with `attributes`.
    """

    item: str
    title: str | None
    score: float
    rank: int
    parts: Mapping[str, float]
    clicks: tuple[ClickEffect, ...]
    unread: int = 0
    unknown: tuple[str, ...] = ()
    probability: float | None = None
    repeat_chance: float | None = None
    attributes: tuple[AttributeEffect, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists, for `json.dumps`."""
        return asdict(self)
