"""What a shopper has clicked so far, as raw item ids.

>>> session = Session().then("sku-1").then("sku-7")
>>> session.clicks, len(session)
(('sku-1', 'sku-7'), 2)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from posrec.errors import InputError

Click = str | int  # a raw id; a number stands for its text


@dataclass(frozen=True)
class Session:
    """Clicks, the oldest first. It never changes: `then` gives another, so a session may be shared and kept."""

    clicks: tuple[str, ...] = ()

    def then(self, *clicks: Click) -> "Session":
        return Session(self.clicks + tuple(as_ids(clicks)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.clicks)

    def __len__(self) -> int:
        return len(self.clicks)


AnySession = Session | Sequence[Click]


def as_ids(clicks: Iterable[Any]) -> list[str]:
    """Raw ids as text. Whatever is no list of texts and whole numbers is refused.

    >>> as_ids(["sku-1", 42])
    ['sku-1', '42']
    """
    if isinstance(clicks, str | bytes) or not isinstance(clicks, Iterable):
        raise InputError(f"a session is a list of item ids, not {clicks!r}")
    return [item if type(item) is str else as_id(item) for item in clicks]


def as_id(item: Any) -> str:
    if isinstance(item, bool) or not isinstance(item, str | Integral):
        raise InputError(f"an item id is text or a whole number, not {item!r}")
    return str(item)
