"""Which format a log has, by its ending and its first lines."""

import csv
import io
import json
import re
from dataclasses import dataclass

from posrec.data.source.blocks import BYTE_ORDER_MARK
from posrec.data.source.files import File, read_start
from posrec.data.source.readers.columns import COMMON_NAMES, DELIMITERS, find_common
from posrec.errors import InputError

START_BYTES = 1 << 16
EXAMINED_LINES = 20
YOOCHOOSE = re.compile(r"\d+,\d{4}-\d\d-\d\dT[\d:.]+Z,\d+,\w+")
TYPED = re.compile(r"[^\s:]+:(token|float|token_seq|float_seq)")
DIGINETICA = (
    {"sessionId", "itemId", "timeframe", "eventdate"},
    {"session_id", "item_id", "timeframe", "eventdate"},
)
RETAILROCKET = {"timestamp", "visitorid", "event", "itemid", "transactionid"}


@dataclass(frozen=True)
class Conclusion:
    """A format, the delimiter if the format leaves it open, and why."""

    format: str
    because: str
    delimiter: str | None = None


def detect_format(path: File) -> Conclusion:
    """The format of a log.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder) / "clicks.txt"
    ...     _ = log.write_text("session;item;time\\n1;2;3\\n")
    ...     detect_format(log)
    Conclusion(format='csv', because='a header with a semicolon between the fields', delimiter=';')
    """
    start = read_start(path, START_BYTES).removeprefix(BYTE_ORDER_MARK)
    if start.startswith(b"PAR1"):
        return Conclusion("parquet", "the first bytes are those of a Parquet file")
    if start.startswith(b"\x80") and b"." in start:
        return Conclusion("srgnn", "the first byte is that of a pickle")
    # The last line may be cut off, unless it is the only one.
    lines = [
        line
        for line in start.decode("utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    lines = lines[
        : min(EXAMINED_LINES, max(1, len(lines) - (len(start) >= START_BYTES)))
    ]
    if not lines:
        raise InputError(f"{path} is empty; there is nothing to read")
    return (
        json_format(path, lines) or known_header(path, lines) or delimited(path, lines)
    )


def json_format(path: File, lines: list[str]) -> Conclusion | None:
    if lines[0].lstrip().startswith("["):
        raise InputError(
            f"{path} is one JSON array; write one event a line, e.g. with: jq -c '.[]'"
        )
    if not lines[0].lstrip().startswith("{"):
        return None
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("events"), list):
            return Conclusion(
                "otto", "JSON lines with a session and its events in each"
            )
        return Conclusion("jsonl", "JSON lines with an event in each")
    raise InputError(
        f"{path} begins with a brace, but its first lines are not JSON; pass --format"
    )


def known_header(path: File, lines: list[str]) -> Conclusion | None:
    header = lines[0].strip()
    if all(TYPED.fullmatch(name) for name in header.split("\t")) and (
        "\t" in header or path.name.endswith(".inter")
    ):
        if "item_id_list:token_seq" in header.split("\t"):
            return Conclusion(
                "recbole-prefixes",
                "a header of name:type with item_id_list, the prefix of a session",
            )
        return Conclusion("recbole", "a header of name:type")
    if any(names <= set(header.split(";")) for names in DIGINETICA):
        return Conclusion("diginetica", "the header of Diginetica's item views")
    if set(header.split(",")) == RETAILROCKET:
        return Conclusion("retailrocket", "the header of RetailRocket's events")
    if all(YOOCHOOSE.fullmatch(line.strip()) for line in lines):
        return Conclusion(
            "yoochoose", "lines of session,time,item,category without a header"
        )
    return None


def delimited(path: File, lines: list[str]) -> Conclusion:
    """Text with a header, or lines of item ids."""
    for delimiter in ("\t", ",", ";", "|"):
        records = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter))
        widths = [len(record) for record in records]
        same = sum(width == widths[0] for width in widths)
        if widths[0] > 1 and has_header(records[0]) and same > len(widths) / 2:
            because = f"a header with {DELIMITERS[delimiter]} between the fields"
            return (
                Conclusion("tsv", because)
                if delimiter == "\t"
                else Conclusion("csv", because, delimiter)
            )
    words = [line.split() for line in lines]
    if looks_like_columns(words[0]):
        return Conclusion("csv", "a header with a space between the fields", " ")
    if not path.name.lower().endswith((".csv", ".tsv")) and all(
        is_id(word) for line in words for word in line
    ):
        return Conclusion("sessions", "lines of item ids separated by spaces")
    raise InputError(
        f"{path}: its first line, {lines[0][:80]!r}, is neither a header nor a line of item ids; add a header such as "
        "session,item,time, or pass --format"
    )


def has_header(names: list[str]) -> bool:
    """Whether these may be names of columns: text, not numbers or dates."""
    return all(
        name.strip() and not re.fullmatch(r"[\d\s.:TZ+-]+", name.strip())
        for name in names
    )


def looks_like_columns(names: list[str]) -> bool:
    sessions = (*COMMON_NAMES["session"], *COMMON_NAMES["user"])
    return (
        find_common(names, sessions) is not None
        and find_common(names, COMMON_NAMES["item"]) is not None
    )


def is_id(word: str) -> bool:
    return not any(sign in word for sign in ",;|{}[]\"'\ufffd\0")
