"""Requests and answers over HTTP: only this file names their fields; docs/http.md explains them.

Item ids are raw ids; a whole number stands for its text. An ExplainAnswer is an `Explanation`
(recommend/results.py), with some fields renamed.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from posrec.recommend.results import Explanation

if TYPE_CHECKING:  # the parent of several workers has no use for torch
    from posrec.recommend.plan import AnswerRules

MOST_CLICKS = 10_000
MOST_ITEMS = 1000
MOST_ID_BYTES = 1024  # of an item id, in UTF-8
LARGEST = 10 ** (MOST_ID_BYTES - 1)  # smaller numbers are short enough, with their sign

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
Listed = Annotated[list[Id], Meta(max_length=200_000)]
FILTER = 'Columns and values: {"category": ["tents"], "price": {"max": 200}}.'
Filter = Annotated[dict[str, Any], Meta(description=FILTER)]
Pinned = Annotated[list[Id], Meta(max_length=100, description="Items to put first.")]
BOOST = 'Factors for chances: {"brand": {"own": 1.2}}.'
Boost = Annotated[dict[str, dict[str, float]], Meta(description=BOOST)]
EXCLUDE = (
    'Leave out the item of the last click ("current") or every item of the session '
    '("seen").'
)
Exclude = Annotated[Literal["current", "seen"], Meta(description=EXCLUDE)]
Explore = Annotated[
    float, Meta(ge=0, le=0.5, description="The share of places for new items.")
]
ExploreDays = Annotated[
    float, Meta(gt=0, description="For how many days an item is new; 7 by default.")
]
NOW = (
    "The time by which items expire, as a date and time or a number; else the clock's."
)
Now = Annotated[Annotated[str, Meta(max_length=100)] | float, Meta(description=NOW)]
FieldNames = Annotated[
    list[str], Meta(max_length=100, description="Columns to answer with each item.")
]
K = Annotated[int, Meta(ge=1, le=MOST_ITEMS, description="How many items.")]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Paid = Annotated[float, Meta(ge=0, le=1e9, description="What was paid for the item.")]
EVENTS = ("shown", "clicked", "carted", "bought")
FeedbackEvent = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=32,
        pattern="^[a-z0-9_-]+$",
        description=f"{', '.join(EVENTS)}, or one of the shop's own, such as favourite.",
    ),
]


def check_ids(ids: Iterable[Id]) -> None:
    """msgspec turns the ValueError into a refusal of the request."""
    for item in ids:
        if isinstance(item, int):
            is_long = abs(item) >= LARGEST
        else:  # a character has at most four bytes
            is_long = (
                len(item) > MOST_ID_BYTES // 4 and len(item.encode()) > MOST_ID_BYTES
            )
        if is_long:
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


class AnswerRequest(Struct, kw_only=True, forbid_unknown_fields=True):
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
    explore_days: ExploreDays | None = None
    now: Now | None = None
    fields: FieldNames | None = None

    def __post_init__(self) -> None:
        check_ids(self.clicked())
        for ids in (self.allow, self.deny, self.pin):
            check_ids(ids or ())

    def clicked(self) -> Iterable[Id]:
        return ()

    def rules(self) -> "AnswerRules":
        names = AnswerRequest.__struct_fields__
        rules: Any = {name: getattr(self, name) for name in names if name != "k"}
        if isinstance(self.diversify, ColumnLimit):
            rules["diversify"] = asdict(self.diversify)
        return rules  # type: ignore[no-any-return]


class RecommendRequest(AnswerRequest, kw_only=True):
    session: Clicks
    session_id: str | None = None
    split_by: str | None = None

    def clicked(self) -> Iterable[Id]:
        return self.session


class BatchRequest(AnswerRequest, kw_only=True):
    sessions: Annotated[list[Clicks], Meta(max_length=1000)]

    def clicked(self) -> Iterable[Id]:
        return chain.from_iterable(self.sessions)


class ClickRequest(AnswerRequest, kw_only=True):
    item: Id

    def clicked(self) -> Iterable[Id]:
        return (self.item,)


class RankRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    session: Clicks
    candidates: Annotated[
        list[Id],
        Meta(min_length=1, max_length=MOST_ITEMS, description="The items to rank."),
    ]
    split_by: str | None = None

    def __post_init__(self) -> None:
        check_ids((*self.session, *self.candidates))


class FeedbackRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    # The id of an answer has a mark of four digits for each item.
    answer: Annotated[
        str, Meta(min_length=1, max_length=5000, description="The id of the answer.")
    ]
    event: FeedbackEvent
    items: Annotated[
        list[Id],
        Meta(min_length=1, max_length=MOST_ITEMS, description="Shown: in their order."),
    ]
    session: Name | None = None
    visitor: Name | None = None
    value: Paid | None = None

    def __post_init__(self) -> None:
        check_ids(self.items)
        if self.event.endswith("\n"):  # the pattern's $ allows it
            raise ValueError("event must not end with a newline")
        if self.value is not None and (self.event != "bought" or len(self.items) > 1):
            raise ValueError(
                "value is what was paid for one item: it needs the event 'bought' and a single item"
            )


class ExplainRequest(Struct, forbid_unknown_fields=True):
    session: SomeClicks
    item: Id
    split_by: str | None = None

    def __post_init__(self) -> None:
        check_ids((*self.session, self.item))


class RecommendedItem(Struct, omit_defaults=True):
    item: str
    score: float
    title: str | None
    fields: dict[str, Any] | None = None
    pinned: bool = False
    explored: bool = False


class RecommendAnswer(Struct):
    items: list[RecommendedItem]
    unknown: tuple[str, ...]
    popular: bool
    id: str
    run: str  # the fingerprint of the run that answered


class RankAnswer(RecommendAnswer):
    unknown_candidates: tuple[str, ...]


class BatchAnswer(Struct):
    answers: list[RecommendAnswer]


class SimilarAnswer(Struct):
    items: list[RecommendedItem]
    run: str


class FeedbackAnswer(Struct):
    written: int


class Part(Struct):
    name: str
    value: float


class ExplainedClick(
    Struct,
    rename={"effect": "left_out", "mean_attention": "attention", "attention": "reads"},
):
    item: str
    title: str | None
    position: int
    mean_attention: float | None
    attention: dict[str, float]
    effect: float | None
    rank_without: int | None


class ExplainedAttribute(Struct):
    column: str | None
    label: str
    effect: float


class ExplainAnswer(Struct):
    item: str
    title: str | None
    score: float
    rank: int
    parts: list[Part]
    clicks: list[ExplainedClick]
    unknown: tuple[str, ...]
    probability: float | None
    repeat_chance: float | None
    attributes: list[ExplainedAttribute]

    @classmethod
    def from_explanation(
        cls, why: Explanation, positions: Sequence[int]
    ) -> "ExplainAnswer":
        """`positions`: where the clicks on known items are in the request's session; the model may
        have read only the latest of them."""
        clicks = []
        read_positions = positions[len(positions) - len(why.clicks) :]
        for position, click in zip(read_positions, why.clicks, strict=True):
            shares = click.attention.values()
            mean = sum(shares) / len(shares) if shares else None
            clicks.append(
                ExplainedClick(**vars(click), position=position, mean_attention=mean)
            )
        return cls(
            item=why.item,
            title=why.title,
            score=why.score,
            rank=why.rank,
            parts=[Part(name, value) for name, value in why.parts.items()],
            clicks=clicks,
            unknown=why.unknown,
            probability=why.probability,
            repeat_chance=why.repeat_chance,
            attributes=[ExplainedAttribute(**vars(one)) for one in why.attributes],
        )


class ListedItem(Struct):
    item: str
    title: str | None
    clicks: int | None


class ItemsAnswer(Struct):
    items: list[ListedItem]


class RunAnswer(Struct):
    model: str
    items: int
    max_length: int
    metrics: dict[str, Any] | None
    trained: dict[str, Any]
    search: str
    recall: float
    log_probabilities: bool
    fingerprint: str
    columns: list[str]
    split: list["SplitRun"]


class SplitRun(Struct):
    name: str
    fingerprint: str | None
    share: float
    split_by: str | None


class ErrorAnswer(Struct):
    error: str
