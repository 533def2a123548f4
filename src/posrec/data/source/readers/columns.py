"""Which columns are the session, the item and the time: named, or guessed and reported."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from posrec.data.source.files import File
from posrec.data.source.readers.options import ROLES, LogOptions, as_tuple
from posrec.errors import InputError

DELIMITERS = {
    ",": "a comma",
    ";": "a semicolon",
    "\t": "a tab",
    "|": "a bar",
    " ": "a space",
}
# What logs call their columns, as `plain_name` writes it; the earlier name wins.
NAMES_IN_LOGS = {
    "session": "session sessionid sid visit visitid sessionkey",
    "user": "user userid uid visitor visitorid customer customerid clientid deviceid "
    "userpseudoid anonymousid",
    "item": "item itemid iid product productid sku productsku articleid article aid asin offerid",
    "time": "time timestamp ts datetime eventtime clicktime createdat unixtime date "
    "eventtimestamp",
    "event": "event eventtype type action behavior behaviour eventname",
}
COMMON_NAMES = {role: tuple(names.split()) for role, names in NAMES_IN_LOGS.items()}
NEGATIVE = re.compile(r"-[0-9]+(\.[0-9]+)?")
# Between the parts of a composite session id, and before a user's: ids don't contain it.
BETWEEN_IDS = "\x1f"
# Google Analytics numbers the sessions of each user.
NUMBERED_PER_USER = ("gasessionid",)


class MissingColumn(InputError):
    """A column that is needed is not there."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns that a click is read from."""

    session: tuple[str, ...]  # several are a composite key
    item: str
    time: str
    event: str | None = None
    date: str | None = None  # if the day has a column of its own
    user: str | None = None  # of clicks without a session
    marks_users: bool = False  # other files of the log may have sessions

    @property
    def ids(self) -> list[str]:
        return [*self.session, *as_tuple(self.user), self.item]

    @property
    def names(self) -> list[str]:
        optional = (*as_tuple(self.event), *as_tuple(self.date))
        return list(dict.fromkeys([*self.ids, self.time, *optional]))

    def select(self) -> list[pl.Expr]:
        """A column for each role, and `by_user` where a log has sessions and users."""
        roles = [self.session_id().alias("session")]
        for role in ("item", "time", "event", "date"):
            name = getattr(self, role)
            if name is not None:
                roles.append(pl.col(name).alias(role))
        if self.marks_users:
            by_user = self.session_id().str.starts_with(BETWEEN_IDS)
            roles.append(by_user.alias("by_user"))
        return roles

    def session_id(self) -> pl.Expr:
        """The session's id, or the user's, after a separator where a log has both; null where ids
        are missing or negative."""
        columns = self.session or as_tuple(self.user)
        if len(columns) == 1 and not self.marks_users:
            return pl.col(columns[0])
        joined = pl.concat_str(pl.col(columns).cast(pl.String), separator=BETWEEN_IDS)
        is_bad = pl.any_horizontal(bad_id(name) for name in columns)
        session = pl.when(~is_bad).then(joined)
        if self.user is None:
            return session
        user = pl.concat_str(pl.lit(BETWEEN_IDS), pl.col(self.user).cast(pl.String))
        by_user = pl.when(~bad_id(self.user)).then(user)
        return session.otherwise(by_user) if self.session else by_user


def bad_id(column: str) -> pl.Expr:
    """Whether an id is missing or a negative number: logs write -1 for "unknown"."""
    text = pl.col(column).cast(pl.String).fill_null("")
    return text.str.contains(f"^({NEGATIVE.pattern})?$")


def normal_ids(ids: pl.Expr) -> pl.Expr:
    """Without spaces around them, and with accents as parts of their letters."""
    return ids.cast(pl.String).str.strip_chars().str.normalize("NFC")


def id_fault(value: object) -> str | None:
    """What is wrong with an id, for a message; None if nothing is."""
    if value is None or not str(value).strip():
        return "is missing"
    if NEGATIVE.fullmatch(str(value)):
        return f"is {value}, and an id can't be negative"
    return None


def choose_columns(
    path: File | str, names: list[str], options: LogOptions
) -> tuple[Columns, dict[str, tuple[str, ...]]]:
    """The columns, named or guessed; and the guesses to report, by role."""
    named = options.named_columns()
    listed = comma_separated(names)
    for role, columns in named.items():
        for column in columns:
            if column not in names:
                raise MissingColumn(
                    f"{path} has no column {column!r} (--{role}-column); it has {listed}; if "
                    "files have columns of their own, name them with --columns"
                )
    guessed = guess_columns(names, named)
    chosen = named | guessed
    required = ["session", "item", "time"]
    if options.needs_events:
        required.append("event")
    elif not named["event"]:
        # A column of events that is only read in passing gives way to the other roles.
        taken = [column for role in ROLES if role != "event" for column in chosen[role]]
        chosen["event"] = tuple(set(guessed["event"]).difference(taken))
    refuse_double_use(path, chosen)
    for role in required:
        if not chosen[role] and not (role == "session" and chosen["user"]):
            raise MissingColumn(
                f"{path} has no column that looks like the {role}; it has {listed}: "
                f"name the right one with --{role}-column"
            )
    if not options.needs_events:
        guessed.pop("event", None)
    event = next(iter(chosen["event"]), None)
    user = next(iter(chosen["user"]), None)
    item = chosen["item"][0]
    time = chosen["time"][0]
    session = chosen["session"]
    has_both = options.mixed or (bool(session) and user is not None)
    return Columns(session, item, time, event, None, user, has_both), guessed


def guess_columns(
    names: list[str], named: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    guessed = {}
    if not named["session"] and not named["user"]:
        guessed["session"] = guess_session(names)
        if not guessed["session"]:
            guessed["user"] = as_tuple(find_common(names, COMMON_NAMES["user"]))
    for role in ("item", "time", "event"):
        if not named[role]:
            guessed[role] = as_tuple(find_common(names, COMMON_NAMES[role]))
    return guessed


def guess_session(names: list[str]) -> tuple[str, ...]:
    """The session's column, with the user's where sessions are numbered per user."""
    if session := find_common(names, COMMON_NAMES["session"]):
        return (session,)
    session = find_common(names, NUMBERED_PER_USER)
    user = find_common(names, COMMON_NAMES["user"])
    return () if session is None or user is None else (user, session)


def refuse_double_use(path: File | str, chosen: dict[str, tuple[str, ...]]) -> None:
    """Raise if a column has two roles; the user may be a part of a composite session."""
    roles: dict[str, str] = {}
    for role, columns in chosen.items():
        in_session = role == "user" and len(chosen["session"]) > 1
        for column in columns:
            if column in roles and not in_session:
                raise InputError(
                    f"{path}: column {column!r} can't be both the {roles[column]} and the {role}; "
                    "name another"
                )
            roles.setdefault(column, role)


def find_common(names: list[str], common_names: Sequence[str]) -> str | None:
    """The column with the earliest of these names, however it is spelled."""
    columns = {plain_name(name): name for name in reversed(names)}
    matches = (columns[name] for name in common_names if name in columns)
    return next(matches, None)


def plain_name(name: str) -> str:
    """
    >>> plain_name("Item_ID"), plain_name("item.id")
    ('itemid', 'itemid')
    """
    return re.sub("[-_. ]", "", name.lower())


def comma_separated(names: list[str]) -> str:
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
