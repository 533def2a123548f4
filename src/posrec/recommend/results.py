"""What is given back: recommendations and explanations, in raw item ids."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recommendation:
    item: str
    score: float
    title: str | None = None  # where the vocabulary knows one


@dataclass(frozen=True)
class Recommendations:
    """The best items, the best first; to be used like a list of them, with what is to be said about it."""

    items: tuple[Recommendation, ...]
    unknown: tuple[str, ...] = ()  # clicks that were skipped: items the model does not know
    popular: bool = False  # no click was known, so these are the most clicked items, and scores count clicks

    def __iter__(self) -> Iterator[Recommendation]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Recommendation:
        return self.items[place]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ClickEffect:
    """What one click did for the score of an item.

    `effect` is the score less the score of the session without this click, and `rank_without` the item's rank then;
    None where no other click is left. `attention` says how much each intention reads the click (PosRec alone).
    """

    item: str
    title: str | None
    effect: float | None
    rank_without: int | None
    attention: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """Why an item is scored as it is.

    `parts` add up to the score: what the last item, the latest and the initial intention each gave. Only PosRec's score
    is such a sum; for other models they are empty.
    """

    item: str
    title: str | None
    score: float
    rank: int  # 1 is the best
    parts: Mapping[str, float]
    clicks: tuple[ClickEffect, ...]  # those that the model reads, the oldest first
    unread: int = 0  # earlier clicks than the model reads
    unknown: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
