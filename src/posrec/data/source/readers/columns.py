"""Which columns are the session, the item and the time: named, or guessed and reported."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from posrec.data.source.files import File
from posrec.data.source.readers.options import LogOptions, as_tuple
from posrec.errors import InputError

DELIMITERS = {
    ",": "a comma",
    ";": "a semicolon",
    "\t": "a tab",
    "|": "a bar",
    " ": "a space",
}
# Compared in lower case without underscores, dashes, points and spaces; the earlier name wins.
NAMES_IN_LOGS = {
    "session": "session sessionid sid visit visitid sessionkey",
    "user": "user userid uid visitor visitorid customer customerid clientid deviceid userpseudoid anonymousid",
    "item": "item itemid iid product productid sku productsku articleid article aid asin offerid",
    "time": "time timestamp ts datetime eventtime clicktime createdat unixtime date eventtimestamp",
    "event": "event eventtype type action behavior behaviour eventname",
}
COMMON_NAMES = {role: tuple(names.split()) for role, names in NAMES_IN_LOGS.items()}

NEGATIVE = re.compile(r"-[0-9]+(\.[0-9]+)?")
# Between the parts of a composite session id, and before a user's: ASCII's own separator, which ids
# don't contain.
BETWEEN_IDS = "\x1f"
# A number that Google Analytics gives to a user's sessions. Two users can have the same one, so it
# needs the user.
NUMBERED_PER_USER = ("gasessionid",)
Guesses = dict[str, tuple[str, ...]]  # role -> columns


class MissingColumn(InputError):
    """A column that is needed was not found."""


@dataclass(frozen=True)
class Columns:
    """The column names of what a click needs; `date` where the day has a column of its own.

    Several columns of the session are a composite key. A click without a session is its `user`'s.
    """

    session: tuple[str, ...]
    item: str
    time: str
    event: str | None = None
    date: str | None = None
    user: str | None = None

    @property
    def ids(self) -> list[str]:
        """Every column that holds an id."""
        return [*self.session, *as_tuple(self.user), self.item]

    @property
    def names(self) -> list[str]:
        """Every column, once."""
        return list(
            dict.fromkeys(
                [*self.ids, self.time, *as_tuple(self.event), *as_tuple(self.date)]
            )
        )

    def select(self) -> list[pl.Expr]:
        """The rows of clicks, one column for each role."""
        roles = {
            "item": self.item,
            "time": self.time,
            "event": self.event,
            "date": self.date,
        }
        others = (
            pl.col(name).alias(role) for role, name in roles.items() if name is not None
        )
        return [self.session_id().alias("session"), *others]

    def session_id(self) -> pl.Expr:
        """The session's id, or the user's; null where ids are missing or negative. Where a log has
        both, a user's id begins with a separator."""
        columns = self.session or as_tuple(self.user)
        if len(columns) == 1 and not self.has_both:
            return pl.col(columns[0])
        joined = pl.concat_str(pl.col(columns).cast(pl.String), separator=BETWEEN_IDS)
        session = pl.when(~pl.any_horizontal(bad_id(name) for name in columns)).then(
            joined
        )
        if self.user is None:
            return session
        user = pl.concat_str(pl.lit(BETWEEN_IDS), pl.col(self.user).cast(pl.String))
        return session.otherwise(pl.when(~bad_id(self.user)).then(user))

    @property
    def has_both(self) -> bool:
        """Whether some clicks have a session and others only a user."""
        return bool(self.session) and self.user is not None


def is_missing(column: str) -> pl.Expr:
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "")


def bad_id(column: str) -> pl.Expr:
    """Whether an id is missing or a negative number: logs write -1 for "unknown" far more often
    than as an id."""
    return is_missing(column) | pl.col(column).cast(pl.String).str.contains(
        f"^{NEGATIVE.pattern}$"
    )


def id_fault(value: object) -> str | None:
    """What is wrong with an id, for an error message; None if nothing is."""
    if value is None or value == "":
        return "is missing"
    if str(value)[0] == "-" and NEGATIVE.fullmatch(str(value)):
        return f"is {value}, and an id can't be negative"
    return None


def choose_columns(
    path: File | str, names: list[str], options: LogOptions
) -> tuple[Columns, Guesses]:
    """The columns that the user named, and guesses for the rest; and those guesses, which are to be
    reported."""
    named = options.columns()
    for role, columns in named.items():
        for column in columns:
            if column not in names:
                found = comma_separated(names)
                raise MissingColumn(
                    f"{path} has no column {column!r} (--{role}-column); it has {found}"
                )
    guessed: Guesses = {}
    if not named["session"] and not named["user"]:
        guessed["session"] = guess_session(names)
        if not guessed["session"]:
            guessed["user"] = as_tuple(find_common(names, COMMON_NAMES["user"]))
    for role in ("item", "time", "event"):
        if not named[role]:
            guessed[role] = as_tuple(find_common(names, COMMON_NAMES[role]))
    chosen = {role: named[role] or guessed.get(role, ()) for role in named}
    refuse_double_use(
        path,
        chosen,
        optional=set() if named["event"] or options.needs_events else {"event"},
    )
    for role in (
        "session",
        "item",
        "time",
        *(["event"] if options.needs_events else []),
    ):
        if not chosen[role] and not (role == "session" and chosen["user"]):
            raise MissingColumn(
                f"{path} has no column that looks like the {role}; it has {comma_separated(names)}: name the right one "
                f"with --{role}-column"
            )
    reported = {
        role: columns
        for role, columns in guessed.items()
        if role != "event" or options.needs_events
    }
    event, user = ((chosen[role] or (None,))[0] for role in ("event", "user"))
    return Columns(
        chosen["session"], chosen["item"][0], chosen["time"][0], event, user=user
    ), reported


def guess_session(names: list[str]) -> tuple[str, ...]:
    """The session's column, or also the user's where sessions are numbered per user."""
    session = find_common(names, COMMON_NAMES["session"])
    if session is not None:
        return (session,)
    session = find_common(names, NUMBERED_PER_USER)
    user = find_common(names, COMMON_NAMES["user"])
    return () if session is None or user is None else (user, session)


def refuse_double_use(
    path: File | str, chosen: dict[str, tuple[str, ...]], optional: set[str]
) -> None:
    """Raise if a column has two roles, unless one is `optional` or part of a composite session."""
    roles: dict[str, str] = {}
    for role, columns in chosen.items():
        for column in columns:
            if column in roles and role in optional:
                chosen[role] = ()
            elif column in roles and not (
                role == "user" and len(chosen["session"]) > 1
            ):
                raise InputError(
                    f"{path}: column {column!r} can't be both the {roles[column]} and the {role}; name another"
                )
            roles.setdefault(column, role)


def find_common(names: list[str], common_names: Sequence[str]) -> str | None:
    """The column with the earliest possible of these names, however it is spelled."""
    plain = {plain_name(name): name for name in reversed(names)}
    return next((plain[common] for common in common_names if common in plain), None)


def plain_name(name: str) -> str:
    """
    >>> plain_name("Item_ID"), plain_name("item.id")
    ('itemid', 'itemid')
    """
    return re.sub("[-_. ]", "", name.lower())


def refuse_single_column(path: File, header: str, fixed: str | None = None) -> None:
    """Raise for a header of one column, and name the delimiter that it seems to have."""
    advice = "a log needs a session, an item and a time"
    if delimiter := next((sign for sign in DELIMITERS if sign in header), None):
        format = (
            ""
            if fixed is None
            else f"this format needs {DELIMITERS[fixed]}, so use --format csv "
        )
        written = "'\\t'" if delimiter == "\t" else repr(delimiter)
        advice = f"its fields look separated by {DELIMITERS[delimiter]}: {format or 'pass '}--delimiter {written}"
    raise InputError(f"{path}, line 1: only one column, {header!r}; {advice}")


def comma_separated(names: list[str]) -> str:
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
