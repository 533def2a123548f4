"""Which column of a log is the session, the item and the time: named by the user, or guessed and reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posrec.errors import InputError
from posrec.progress import Progress

DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar", " ": "a space"}
# Compared in lower case without underscores, dashes and spaces; the earlier name wins.
COMMON_NAMES = {
    "session": ("session", "sessionid", "sid", "visit", "visitid", "sessionkey"),
    "user": ("user", "userid", "uid", "visitor", "visitorid", "customer", "customerid", "clientid", "deviceid"),
    "item": ("item", "itemid", "iid", "product", "productid", "sku", "articleid", "article", "aid", "asin", "offerid"),
    "time": ("time", "timestamp", "ts", "datetime", "eventtime", "clicktime", "createdat", "unixtime", "date"),
    "event": ("event", "eventtype", "type", "action", "behavior", "behaviour"),
}
ANY_LOG = ("session_column", "item_column", "time_column", "event_column", "events", "time_unit")
# The options of a log that each format takes; the formats that are not listed take none.
OPTIONS_BY_FORMAT: dict[str, tuple[str, ...]] = {
    "csv": (*ANY_LOG, "delimiter"),
    "parquet": ANY_LOG,
    "recbole": ANY_LOG,
    "retailrocket": ("events",),
    "otto": ("events",),
}


@dataclass(frozen=True)
class LogOptions:
    """What the user says about a log; every field can be left out."""

    session_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    event_column: str | None = None
    events: Sequence[str] = ()
    delimiter: str = ","
    time_unit: str | None = None

    def check(self, format: str) -> None:
        """Refuse options that the format would ignore."""
        for name, value in vars(self).items():
            if value != getattr(LogOptions, name) and name not in OPTIONS_BY_FORMAT.get(format, ()):
                raise InputError(
                    f"--{name.replace('_', '-')} can't be used with --format {format}, whose layout is fixed"
                )
        if self.event_column is not None and not self.events and format in ("csv", "parquet", "recbole"):
            raise InputError(
                "--event-column names the column of the event type; also name the types to read with --events"
            )
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise InputError(f"--delimiter {self.delimiter!r} can't be used; give one character, e.g. ';' or '\\t'")


@dataclass(frozen=True)
class Columns:
    """The column names, in the file, of what a click needs; `date` where the day has a column of its own."""

    session: str
    item: str
    time: str
    event: str | None = None
    date: str | None = None

    def used(self) -> dict[str, str]:
        return {role: name for role, name in vars(self).items() if name is not None}


@dataclass(frozen=True)
class ChosenColumns:
    columns: Columns
    by_user: bool  # the "session" column holds users, whose clicks are yet to be split into sessions


def choose_columns(
    path: Path, names: list[str], options: LogOptions, progress: Progress, fixed: str | None = None
) -> ChosenColumns:
    """The columns that the user named, and guesses for the rest. `fixed` is the delimiter the format prescribes."""
    named = {
        "session": options.session_column,
        "item": options.item_column,
        "time": options.time_column,
        "event": options.event_column,
    }
    if len(names) == 1:
        refuse_single_column(path, names[0], fixed)
    chosen: dict[str, str] = {}
    by_user = False
    for role, wanted in named.items():
        if wanted is not None and wanted not in names:
            raise InputError(f"{path} has no column {wanted!r} (--{role}-column); it has {comma_separated(names)}")
        if wanted is None and (role != "event" or options.events):
            wanted = guess(names, role)
            if wanted is None and role == "session":
                wanted = guess(names, "user")
                by_user = wanted is not None
            if wanted is None:
                raise InputError(f"{path} has no column that looks like the {role}; it has {comma_separated(names)}: "
                                 f"name the right one with --{role}-column")  # fmt: skip
            progress.message(
                f"{path.name}: column {wanted!r} read as the {'user' if by_user and role == 'session' else role}"
            )
        if wanted is not None:
            other = next((taken for taken, name in chosen.items() if name == wanted), None)
            if other is not None:
                raise InputError(f"{path}: column {wanted!r} can't be both the {other} and the {role}; name another")
            chosen[role] = wanted
    return ChosenColumns(Columns(**chosen), by_user)


def guess(names: list[str], role: str) -> str | None:
    return find_common(names, COMMON_NAMES[role])


def find_common(names: list[str], common_names: Sequence[str]) -> str | None:
    """The column that has one of these names, the earliest of them, however it is spelled; None if there is none."""
    plain = {name.lower().replace("_", "").replace("-", "").replace(" ", ""): name for name in reversed(names)}
    return next((plain[common] for common in common_names if common in plain), None)


def refuse_single_column(path: Path, header: str, fixed: str | None = None) -> None:
    """Raise for a header of one column, and name the delimiter that it seems to have."""
    for delimiter, described in DELIMITERS.items():
        if delimiter in header:
            written = "'\\t'" if delimiter == "\t" else repr(delimiter)
            advice = f"pass --delimiter {written}"
            if fixed is not None:
                advice = f"this format needs {DELIMITERS[fixed]}, so use --format csv --delimiter {written}"
            raise InputError(
                f"{path}, line 1: only one column, {header!r}; its fields look separated by {described}: {advice}"
            )
    raise InputError(f"{path}, line 1: only one column, {header!r}; a log needs a session, an item and a time")


def comma_separated(names: list[str]) -> str:
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
