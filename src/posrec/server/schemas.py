"""Requests and answers over HTTP as msgspec structs. Item ids are raw ids; a number stands for its text."""

from typing import Annotated, Any

from msgspec import Meta, Struct

MOST_CLICKS = 10_000
MOST_ITEMS = 1000
MOST_LISTED = 200_000  # ids in an allow or deny list; the limit on the body comes first, mostly

Id = str | int
Clicks = Annotated[list[Id], Meta(max_length=MOST_CLICKS, description="Item ids, the oldest click first.")]
SomeClicks = Annotated[list[Id], Meta(min_length=1, max_length=MOST_CLICKS, description="Item ids, the oldest first.")]
Listed = Annotated[list[Id], Meta(max_length=MOST_LISTED)]
K = Annotated[int, Meta(ge=1, le=MOST_ITEMS, description="How many items.")]


class RecommendRequest(Struct, forbid_unknown_fields=True):
    session: Clicks
    k: K = 20
    exclude_seen: bool = False
    allow: Listed | None = None
    deny: Listed | None = None
    session_id: str | None = None  # clicks kept under this id come before those given here


class ClickRequest(Struct, forbid_unknown_fields=True):
    item: Id
    k: K = 20
    exclude_seen: bool = False


class ExplainRequest(Struct, forbid_unknown_fields=True):
    session: SomeClicks
    item: Id


class RecommendedItem(Struct):
    item: str
    score: float
    title: str | None


class RecommendAnswer(Struct):
    items: list[RecommendedItem]
    unknown: list[str]  # clicks that were skipped: items the model does not know
    popular: bool  # no click was known, so these are the most clicked items


class Part(Struct):
    name: str
    value: float


class ExplainedClick(Struct):
    item: str
    title: str | None
    position: int  # of the click in the session that was sent, from 0
    attention: float | None  # how much the intentions read it, on average
    reads: dict[str, float]  # and each of them
    left_out: float | None  # the score less the score without this click; None where no other click is left
    rank_without: int | None


class ExplainAnswer(Struct):
    item: str
    title: str | None
    score: float
    rank: int
    parts: list[Part]  # they add up to the score; empty for models whose score is no sum
    clicks: list[ExplainedClick]
    unknown: list[str]


class ListedItem(Struct):
    item: str
    title: str | None
    clicks: int | None  # in training


class ItemsAnswer(Struct):
    items: list[ListedItem]


class RunAnswer(Struct):
    model: str
    items: int
    max_length: int  # clicks that the model reads
    metrics: dict[str, Any] | None
    trained: dict[str, Any]
    search: str  # exact, faiss, or all scores where the model has no vectors or a GPU computes them
    recall: float  # of the search, against the exact best 20


class ErrorAnswer(Struct):
    error: str
