"""Which format a log has, by its ending and its first lines."""

import csv
import json
import re
from typing import NamedTuple

from posrec.data.source.blocks import BYTE_ORDER_MARK
from posrec.data.source.files import File, read_start
from posrec.data.source.readers.columns import COMMON_NAMES, DELIMITERS, find_common
from posrec.data.source.readers.delimited import DIGINETICA
from posrec.errors import InputError, NothingToRead

START_BYTES = 1 << 16
EXAMINED_LINES = 20
NOT_IN_IDS = set(",;|{}[]\"'\ufffd\0")
YOOCHOOSE = re.compile(r"\d+,\d{4}-\d\d-\d\dT[\d:.]+Z,\d+,\w+")
TYPED = re.compile(r"[^\s:]+:(token|float|token_seq|float_seq)")
RETAILROCKET = {"timestamp", "visitorid", "event", "itemid", "transactionid"}


class Conclusion(NamedTuple):
    format: str
    because: str
    delimiter: str | None = None  # if the format leaves it open


def detect_format(path: File) -> Conclusion:
    start = read_start(path, START_BYTES).removeprefix(BYTE_ORDER_MARK)
    if start.startswith(b"PAR1"):
        return Conclusion("parquet", "the first bytes are those of a Parquet file")
    if start.startswith(b"\x80") and b"." in start:
        return Conclusion("srgnn", "the first byte is that of a pickle")
    lines = first_lines(start)
    if not lines:
        raise NothingToRead(f"{path} is empty; there is nothing to read")
    conclusion = json_format(path, lines) or public_format(path, lines)
    return conclusion or delimited_format(path, lines)


def first_lines(start: bytes) -> list[str]:
    texts = start.decode("utf-8", errors="replace").splitlines()
    lines = [line for line in texts if line.strip()]
    if len(start) >= START_BYTES and len(lines) > 1:
        lines.pop()  # it may be cut off
    return lines[:EXAMINED_LINES]


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


def public_format(path: File, lines: list[str]) -> Conclusion | None:
    header = lines[0].strip()
    columns = header.split("\t")
    is_typed = all(TYPED.fullmatch(name) for name in columns)
    if is_typed and (len(columns) > 1 or path.name.endswith(".inter")):
        reason = "a header of name:type"
        if "item_id_list:token_seq" in columns:
            reason += " with item_id_list, the prefix of a session"
            return Conclusion("recbole-prefixes", reason)
        return Conclusion("recbole", reason)
    views = [set(columns.names) for columns in DIGINETICA.known_columns]
    if any(names <= set(header.split(";")) for names in views):
        return Conclusion("diginetica", "the header of Diginetica's item views")
    if set(header.split(",")) == RETAILROCKET:
        return Conclusion("retailrocket", "the header of RetailRocket's events")
    if all(YOOCHOOSE.fullmatch(line.strip()) for line in lines):
        return Conclusion(
            "yoochoose", "lines of session,time,item,category without a header"
        )
    return None


def delimited_format(path: File, lines: list[str]) -> Conclusion:
    for delimiter in ("\t", ",", ";", "|"):
        if not has_header(lines, delimiter):
            continue
        reason = f"a header with {DELIMITERS[delimiter]} between the fields"
        if delimiter == "\t":
            return Conclusion("tsv", reason)
        return Conclusion("csv", reason, delimiter)
    if looks_like_columns(lines[0].split()):
        return Conclusion("csv", "a header with a space between the fields", " ")
    is_table = path.name.lower().endswith((".csv", ".tsv"))
    if not is_table and NOT_IN_IDS.isdisjoint("".join(lines)):
        return Conclusion("sessions", "lines of item ids separated by spaces")
    raise InputError(
        f"{path}: its first line, {lines[0][:80]!r}, is neither a header nor a line of item ids; "
        "add a header such as session,item,time, or pass --format"
    )


def has_header(lines: list[str], delimiter: str) -> bool:
    """Whether the first line has names, not numbers or dates, and most lines have as many."""
    records = list(csv.reader(lines, delimiter=delimiter))
    header = [name.strip() for name in records[0]]
    if len(header) == 1 or not all(header):
        return False
    if any(re.fullmatch(r"[\d\s.:TZ+-]+", name) for name in header):
        return False
    return sum(len(record) == len(header) for record in records) > len(records) / 2


def looks_like_columns(names: list[str]) -> bool:
    sessions = (*COMMON_NAMES["session"], *COMMON_NAMES["user"])
    roles = (sessions, COMMON_NAMES["item"])
    return all(find_common(names, common) is not None for common in roles)
