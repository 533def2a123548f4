"""A shopper's clicks so far: as raw item ids, and as the item numbers that a model reads."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from posrec.errors import InputError, plural
from posrec.io import open_regular

Click = str | int  # a raw item id; a whole number stands for its text
MOST_NAMED = 5  # ids in an error message


@dataclass(frozen=True)
class Session:
    """Clicks, the oldest first. A session is immutable: `then` returns a new one.

    >>> Session().then("sku-1").then("sku-7").clicks
    ('sku-1', 'sku-7')
    """

    clicks: tuple[str, ...] = ()

    def then(self, *clicks: Click) -> "Session":
        return Session(self.clicks + tuple(as_ids(clicks)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.clicks)

    def __len__(self) -> int:
        return len(self.clicks)


AnySession = Session | Sequence[Click]


@dataclass(frozen=True)
class EncodedSession:
    """A session as item numbers; `unknown` lists the clicks on items that the model does not know.
    `current` is the item of the last click, None if the model does not know it."""

    numbers: list[int]
    unknown: tuple[str, ...] = ()
    current: int | None = None


def as_ids(clicks: Iterable[Any], what: str = "a session") -> list[str]:
    """Raw item ids as text; anything but a list of texts and whole numbers is an InputError."""
    if isinstance(clicks, str | bytes) or not isinstance(clicks, Iterable):
        raise InputError(f"{what} must be a list of item ids, not {clicks!r}")
    # Texts are the usual case, and a call for each of millions takes time.
    return [item if type(item) is str else as_id(item) for item in clicks]


def as_id(item: Any) -> str:
    if isinstance(item, bool) or not isinstance(item, str | Integral):
        raise InputError(f"an item id must be text or a whole number, not {item!r}")
    return str(item)


def is_many(sessions: Any) -> bool:
    """Whether this is a list of sessions. A list of ids is one session."""
    if not isinstance(sessions, Sequence) or not sessions:
        return False
    return all(isinstance(session, Session | list | tuple) for session in sessions)


class ListedIds:
    """The ids of a text file with one id per line; blank lines and a byte order mark are ignored.

    The file's bytes are kept and decoded at each iteration: texts would take seven times as much
    memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                self.content = file.read()
            self.number = sum(1 for _ in self)
            # UTF-16 and UTF-32 have zero bytes in every line of ASCII.
            if b"\0" in self.content:
                raise UnicodeError("it has zero bytes")
        except UnicodeError as error:
            raise InputError(
                f"{path} is not UTF-8 text ({error}); it must have one item id per line"
            ) from None
        except OSError as error:
            raise InputError(
                f"{path} can't be read ({error.strerror}); "
                "it must be a file with one item id per line"
            ) from None

    def __iter__(self) -> Iterator[str]:
        lines = io.TextIOWrapper(io.BytesIO(self.content), encoding="utf-8-sig")
        return filter(None, map(str.strip, lines))

    def known(
        self, number: Callable[[str], int | None]
    ) -> tuple[list[str], str | None]:
        """The ids that have a number; and a sentence about the others, if there are any."""
        known: list[str] = []
        first_unknown: list[str] = []
        for id in self:
            if number(id) is not None:
                known.append(id)
            elif len(first_unknown) < MOST_NAMED:
                first_unknown.append(id)
        unknown = self.number - len(known)
        if not unknown:
            return known, None
        note = (
            f"{self.path}: the run does not know {unknown:,} of {plural(self.number, 'id')}: "
            f"{some(first_unknown, unknown)}; write ids as in the log, without quotes"
        )
        return known, note


def some(ids: Sequence[str], number: int | None = None) -> str:
    """The first ids, and how many more there are of `number` in all."""
    named = [id if len(id) <= 100 else f"{id[:100]}..." for id in ids[:MOST_NAMED]]
    more = (number or len(ids)) - MOST_NAMED
    return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")
