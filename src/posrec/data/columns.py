"""Which column of a stranger's log is the session, the item, the time: asked for, or guessed and said."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posrec.data.textlog import DELIMITERS, Columns
from posrec.errors import InputError
from posrec.progress import Progress

# Compared in lower case without underscores, dashes and spaces; the earlier name wins.
COMMON_NAMES = {
    "session": ("session", "sessionid", "sid", "visit", "visitid", "sessionkey"),
    "user": ("user", "userid", "uid", "visitor", "visitorid", "customer", "customerid", "clientid", "deviceid"),
    "item": ("item", "itemid", "iid", "product", "productid", "sku", "articleid", "article", "aid", "asin", "offerid"),
    "time": ("time", "timestamp", "ts", "datetime", "eventtime", "clicktime", "createdat", "unixtime", "date"),
    "event": ("event", "eventtype", "type", "action", "behavior", "behaviour"),
}


ANY_LOG = ("session_column", "item_column", "time_column", "event_column", "events", "time_unit")
# Which options each format listens to; those not named have none.
USED_BY = {
    "csv": (*ANY_LOG, "delimiter"),
    "parquet": ANY_LOG,
    "recbole": ANY_LOG,
    "retailrocket": ("events",),
    "otto": ("events",),
}


@dataclass(frozen=True)
class LogOptions:
    """What a user may say about a log; every part can be left out."""

    session_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    event_column: str | None = None
    events: Sequence[str] = ()
    delimiter: str = ","
    time_unit: str | None = None

    def check(self, format: str) -> None:
        """Refuse what the format has no use for, rather than pass over it in silence."""
        for name, value in vars(self).items():
            if value != getattr(LogOptions, name) and name not in USED_BY.get(format, ()):
                raise InputError(
                    f"--{name.replace('_', '-')} can't be used with --format {format}, whose layout is fixed"
                )
        if self.event_column is not None and not self.events and format in ("csv", "parquet", "recbole"):
            raise InputError("--event-column says where the kinds of event stand; say which to read with --events")
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise InputError(f"--delimiter {self.delimiter!r} can't be used; give one character, e.g. ';' or '\\t'")


@dataclass(frozen=True)
class ChosenColumns:
    columns: Columns
    of_users: bool  # the "session" column names people, whose clicks are still to be cut into sessions


def choose_columns(
    path: Path, names: list[str], options: LogOptions, progress: Progress, fixed: str | None = None
) -> ChosenColumns:
    """The columns asked for, and a guess from common names for the rest. `fixed` names a delimiter that is a must."""
    asked = {
        "session": options.session_column,
        "item": options.item_column,
        "time": options.time_column,
        "event": options.event_column,
    }
    if len(names) == 1:
        refuse_delimiter(path, names[0], fixed)
    chosen: dict[str, str] = {}
    of_users = False
    for role, wanted in asked.items():
        if wanted is not None and wanted not in names:
            raise InputError(f"{path} has no column {wanted!r} (--{role}-column); it has {listed(names)}")
        if wanted is None and (role != "event" or options.events):
            wanted = guess(names, role)
            if wanted is None and role == "session":
                wanted = guess(names, "user")
                of_users = wanted is not None
            if wanted is None:
                raise InputError(f"{path} has no column that looks like the {role}; it has {listed(names)}: "
                                 f"name the right one with --{role}-column")  # fmt: skip
            progress.message(
                f"{path.name}: column {wanted!r} read as the {'user' if of_users and role == 'session' else role}"
            )
        if wanted is not None:
            other = next((taken for taken, name in chosen.items() if name == wanted), None)
            if other is not None:
                raise InputError(f"{path}: column {wanted!r} can't be both the {other} and the {role}; name another")
            chosen[role] = wanted
    return ChosenColumns(Columns(**chosen), of_users)


def guess(names: list[str], role: str) -> str | None:
    return find_common(names, COMMON_NAMES[role])


def find_common(names: list[str], common_names: Sequence[str]) -> str | None:
    """The column with the earliest of some common names, however it is spelled."""
    plain = {name.lower().replace("_", "").replace("-", "").replace(" ", ""): name for name in reversed(names)}
    return next((plain[common] for common in common_names if common in plain), None)


def refuse_delimiter(path: Path, header: str, fixed: str | None = None) -> None:
    for delimiter, described in DELIMITERS.items():
        if delimiter in header:
            written = "'\\t'" if delimiter == "\t" else repr(delimiter)
            advice = f"pass --delimiter {written}"
            if fixed is not None:
                advice = f"this format has {DELIMITERS[fixed]} there, so use --format csv --delimiter {written}"
            raise InputError(
                f"{path}, line 1: only one column, {header!r}; its fields look separated by {described}: {advice}"
            )
    raise InputError(f"{path}, line 1: only one column, {header!r}; a log needs a session, an item and a time")


def listed(names: list[str]) -> str:
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
