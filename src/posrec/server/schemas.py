"""Requests and answers over HTTP: only this file knows the names of their fields.

Item ids are raw ids; a whole number stands for its text. An ExplainAnswer is an `Explanation`
(recommend/results.py) with some fields renamed: the names of results.py are on the left.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from posrec.recommend.results import Explanation

if (
    TYPE_CHECKING
):  # the parent of several workers reads the settings, and has no use for torch
    from posrec.recommend.plan import AnswerRules

MOST_CLICKS = 10_000
MOST_ITEMS = 1000
MOST_LISTED = 200_000  # ids in an allow or deny list; the limit on the body is usually reached first
MOST_SESSIONS = 1000  # in a batch
MOST_PINNED = 100
MOST_FIELDS = 100
MOST_ID_BYTES = 1024  # of an item id, in UTF-8
LARGEST = 10 ** (
    MOST_ID_BYTES - 1
)  # whole numbers below it have no more digits, with their sign

Id = str | int
Clicks = Annotated[
    list[Id],
    Meta(max_length=MOST_CLICKS, description="Item ids, the oldest click first."),
]
SomeClicks = Annotated[
    list[Id],
    Meta(
        min_length=1, max_length=MOST_CLICKS, description="Item ids, the oldest first."
    ),
]
Listed = Annotated[list[Id], Meta(max_length=MOST_LISTED)]
Filter = Annotated[
    dict[str, Any],
    Meta(
        description='Columns and values: {"category": ["tents"], "price": {"max": 200}}.'
    ),
]
Pinned = Annotated[
    list[Id], Meta(max_length=MOST_PINNED, description="Items to put first.")
]
Boost = Annotated[
    dict[str, dict[str, float]],
    Meta(description='Factors for chances: {"brand": {"own": 1.2}}.'),
]
Exclude = Annotated[
    Literal["current", "seen"],
    Meta(
        description='Leave out the item of the last click ("current") or every item of the session ("seen").'
    ),
]
Explore = Annotated[
    float, Meta(ge=0, le=0.5, description="The share of places for new items.")
]
FieldNames = Annotated[
    list[str],
    Meta(max_length=MOST_FIELDS, description="Columns to answer with each item."),
]
K = Annotated[int, Meta(ge=1, le=MOST_ITEMS, description="How many items.")]
FeedbackEvent = Literal["shown", "clicked", "carted", "bought"]


def check_ids(ids: Iterable[Id]) -> None:
    """msgspec turns the ValueError into a refusal of the request."""
    for one in ids:
        if isinstance(one, str):
            too_long = (
                len(one) > MOST_ID_BYTES // 4 and len(one.encode()) > MOST_ID_BYTES
            )
        else:
            too_long = abs(one) >= LARGEST
        if too_long:
            raise ValueError(f"an item id has more than {MOST_ID_BYTES:,} bytes")


class ColumnLimit(Struct, forbid_unknown_fields=True):
    """At most `most` items of each value of a column."""

    column: Annotated[str, Meta(min_length=1)]
    most: Annotated[int, Meta(ge=1, le=MOST_ITEMS)]


Diversify = (
    Annotated[float, Meta(ge=0, le=1)]
    | Annotated[str, Meta(min_length=1)]
    | ColumnLimit
)


class AnswerRequest(Struct, kw_only=True):
    """What can be asked for beside a session; see posrec/recommend/plan.py."""

    k: K = 20
    exclude: Exclude | None = None
    exclude_seen: bool = False  # the same as exclude = "seen"
    allow: Listed | None = None
    deny: Listed | None = None
    filter: Filter | None = None
    pin: Pinned | None = None
    boost: Boost | None = None
    diversify: Diversify | None = None
    explore: Explore | None = None
    fields: FieldNames | None = None

    def check_listed(self) -> None:
        for ids in filter(None, (self.allow, self.deny, self.pin)):
            check_ids(ids)

    def rules(self) -> "AnswerRules":
        rules: Any = {
            name: getattr(self, name)
            for name in AnswerRequest.__struct_fields__
            if name != "k"
        }
        if isinstance(self.diversify, ColumnLimit):
            rules["diversify"] = asdict(self.diversify)
        return rules  # type: ignore[no-any-return]


class RecommendRequest(AnswerRequest, kw_only=True, forbid_unknown_fields=True):
    session: Clicks
    session_id: str | None = (
        None  # the clicks stored under this id come before those of `session`
    )
    split_by: str | None = (
        None  # with --split: sessions of the same text are answered by the same run
    )

    def __post_init__(self) -> None:
        check_ids(self.session)
        self.check_listed()


class BatchRequest(AnswerRequest, kw_only=True, forbid_unknown_fields=True):
    sessions: Annotated[list[Clicks], Meta(max_length=MOST_SESSIONS)]

    def __post_init__(self) -> None:
        for session in self.sessions:
            check_ids(session)
        self.check_listed()


class ClickRequest(AnswerRequest, kw_only=True, forbid_unknown_fields=True):
    item: Id

    def __post_init__(self) -> None:
        check_ids((self.item,))
        self.check_listed()


class FeedbackRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    answer: Annotated[
        str, Meta(min_length=1, max_length=300, description="The id of the answer.")
    ]
    event: FeedbackEvent
    items: Annotated[
        list[Id],
        Meta(min_length=1, max_length=MOST_ITEMS, description="Shown: in their order."),
    ]
    session: Annotated[str, Meta(min_length=1, max_length=1000)] | None = (
        None  # without it, the answer is a session
    )
    visitor: Annotated[str, Meta(min_length=1, max_length=1000)] | None = (
        None  # without it, the session is a visitor
    )
    value: (
        Annotated[float, Meta(ge=0, le=1e12, description="What was paid for the item.")]
        | None
    ) = None

    def __post_init__(self) -> None:
        check_ids(self.items)
        if self.value is not None and (self.event != "bought" or len(self.items) > 1):
            raise ValueError(
                "value is what was paid for one item: it needs the event 'bought' and a single item"
            )


class ExplainRequest(Struct, forbid_unknown_fields=True):
    session: SomeClicks
    item: Id
    split_by: str | None = None  # as in a RecommendRequest

    def __post_init__(self) -> None:
        check_ids((*self.session, self.item))


class RecommendedItem(Struct, omit_defaults=True):
    item: str
    score: float
    title: str | None
    fields: dict[str, Any] | None = None  # the columns that were asked for
    pinned: bool = False
    explored: bool = False  # a new item, there because the request has `explore`


class RecommendAnswer(Struct):
    items: list[RecommendedItem]
    unknown: tuple[str, ...]  # the clicks that were skipped
    popular: (
        bool  # whether no click was known, so that the items are the most clicked ones
    )
    id: str  # of this answer, for feedback
    run: str  # the fingerprint of the run that answered


class BatchAnswer(Struct):
    answers: list[RecommendAnswer]  # in the order of the sessions


class SimilarAnswer(Struct):
    items: list[
        RecommendedItem
    ]  # a score is the cosine of the angle between the items' vectors
    run: str


class FeedbackAnswer(Struct):
    written: int  # rows: one for each item


class Part(Struct):
    name: str
    value: float


class ExplainedClick(
    Struct,
    rename={"effect": "left_out", "mean_attention": "attention", "attention": "reads"},
):
    item: str
    title: str | None
    position: int  # of the click in the request's session, counted from 0
    mean_attention: float | None  # the mean of the values of `reads`
    attention: dict[
        str, float
    ]  # by the intention's name; "clicked before": where the model expects a repeat
    effect: (
        float | None
    )  # the score minus the score without this click; None if it is the only click
    rank_without: int | None


class ExplainAnswer(Struct):
    item: str
    title: str | None
    score: float
    rank: int
    parts: list[
        Part
    ]  # they add up to the score; empty for models whose score is not a sum
    clicks: list[ExplainedClick]
    unknown: tuple[str, ...]
    probability: (
        float | None
    )  # whose logarithm is the score; None for models without probabilities
    repeat_chance: (
        float | None
    )  # that the next click repeats an item of the session; likewise

    @classmethod
    def of(cls, why: Explanation, known: Sequence[int]) -> "ExplainAnswer":
        """`known`: the positions in the request's session of the clicks on known items."""
        clicks = []
        for position, click in zip(
            known[len(known) - len(why.clicks) :], why.clicks, strict=True
        ):
            mean = (
                sum(click.attention.values()) / len(click.attention)
                if click.attention
                else None
            )
            clicks.append(
                ExplainedClick(**vars(click), position=position, mean_attention=mean)
            )
        same = {
            name: getattr(why, name)
            for name in cls.__struct_fields__
            if name not in ("parts", "clicks")
        }
        return cls(
            **same,
            parts=[Part(name, value) for name, value in why.parts.items()],
            clicks=clicks,
        )


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
    fingerprint: str  # of the run's weights and settings
    columns: list[str]  # of the items, for filters and fields
    split: list["SplitRun"]  # every run that is served, with its share of the sessions


class SplitRun(Struct):
    name: str  # by its folder
    fingerprint: str | None  # None while the run can't be loaded
    share: float
    split_by: (
        str | None
    )  # a text for `split_by` that this run answers; None where its share is too small to find one


class ErrorAnswer(Struct):
    error: str
