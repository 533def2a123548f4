"""Requests and answers over HTTP. Item ids are raw ids; a whole number stands for its text.

Only this file knows the field names of the HTTP interface. `Recommendations` (recommend/results.py) are sent as they
are; an `Explanation` is sent as an ExplainAnswer, whose renamed fields have the names of results.py on the left and
those of HTTP on the right.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from posrec.recommend.results import Explanation

MOST_CLICKS = 10_000
MOST_ITEMS = 1000
MOST_LISTED = 200_000  # ids in an allow or deny list; the limit on the body is usually reached first

MOST_ID_BYTES = 1024  # of an item id, in UTF-8
LARGEST = 10 ** (MOST_ID_BYTES - 1)  # whole numbers below it have no more digits, with their sign

Id = str | int
Clicks = Annotated[list[Id], Meta(max_length=MOST_CLICKS, description="Item ids, the oldest click first.")]
SomeClicks = Annotated[list[Id], Meta(min_length=1, max_length=MOST_CLICKS, description="Item ids, the oldest first.")]
Listed = Annotated[list[Id], Meta(max_length=MOST_LISTED)]
K = Annotated[int, Meta(ge=1, le=MOST_ITEMS, description="How many items.")]


def check_ids(ids: Iterable[Id]) -> None:
    """Refuse ids of more than MOST_ID_BYTES. msgspec turns the ValueError into a refusal of the request."""
    for one in ids:
        if isinstance(one, str):
            too_long = len(one) > MOST_ID_BYTES // 4 and len(one.encode()) > MOST_ID_BYTES
        else:
            too_long = abs(one) >= LARGEST
        if too_long:
            raise ValueError(f"an item id has more than {MOST_ID_BYTES:,} bytes")


class RecommendRequest(Struct, forbid_unknown_fields=True):
    session: Clicks
    k: K = 20
    exclude_seen: bool = False
    allow: Listed | None = None
    deny: Listed | None = None
    session_id: str | None = None  # the clicks stored under this id come before those of `session`

    def __post_init__(self) -> None:
        check_ids(self.session)
        check_ids(self.allow or ())
        check_ids(self.deny or ())


class ClickRequest(Struct, forbid_unknown_fields=True):
    item: Id
    k: K = 20
    exclude_seen: bool = False

    def __post_init__(self) -> None:
        check_ids((self.item,))


class ExplainRequest(Struct, forbid_unknown_fields=True):
    session: SomeClicks
    item: Id

    def __post_init__(self) -> None:
        check_ids((*self.session, self.item))


class Part(Struct):
    name: str
    value: float


class ExplainedClick(Struct, rename={"effect": "left_out", "mean_attention": "attention", "attention": "reads"}):
    item: str
    title: str | None
    position: int  # of the click in the request's session, counted from 0
    mean_attention: float | None  # the mean of the values of `reads`
    attention: dict[str, float]  # by the intention's name; "clicked before": where the model expects a repeat
    effect: float | None  # the score minus the score without this click; None if it is the only click
    rank_without: int | None


class ExplainAnswer(Struct):
    item: str
    title: str | None
    score: float
    rank: int
    parts: list[Part]  # they add up to the score; empty for models whose score is not a sum
    clicks: list[ExplainedClick]
    unknown: list[str]
    probability: float | None  # whose logarithm is the score; None for models without probabilities
    repeat_chance: float | None  # that the next click repeats an item of the session; likewise

    @classmethod
    def of(cls, why: Explanation, known: Sequence[int]) -> "ExplainAnswer":
        """`known`: the positions in the request's session of the clicks on known items."""
        read = known[len(known) - len(why.clicks) :]
        clicks = [
            ExplainedClick(
                click.item, click.title, position,
                sum(click.attention.values()) / len(click.attention) if click.attention else None,
                dict(click.attention), click.effect, click.rank_without,
            )
            for position, click in zip(read, why.clicks, strict=True)
        ]  # fmt: skip
        parts = [Part(name, value) for name, value in why.parts.items()]
        return cls(
            why.item, why.title, why.score, why.rank, parts, clicks, list(why.unknown), why.probability,
            why.repeat_chance,
        )  # fmt: skip


class ListedItem(Struct):
    item: str
    title: str | None
    clicks: int | None  # in training


class ItemsAnswer(Struct):
    items: list[ListedItem]


class RunAnswer(Struct):
    model: str
    items: int
    max_length: int  # the number of latest clicks that the model reads
    metrics: dict[str, Any] | None
    trained: dict[str, Any]
    search: str  # exact, faiss, or all scores where the model has no vectors or a GPU computes them
    recall: float  # of the search, against the exact best 20
    log_probabilities: bool  # whether a score is the logarithm of a probability


class ErrorAnswer(Struct):
    error: str
