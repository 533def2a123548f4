"""Columns by file (`--columns mapping.toml`): a table for each pattern of files, such as

["hours/*.jsonl.gz"]
session = "ctx.sid"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from posrec.data.source.files import File, find_files, read_whole
from posrec.data.source.readers.options import ROLES, LogOptions
from posrec.errors import InputError, first_line
from posrec.progress import Progress

OPTIONS = {role: f"{role}_column" for role in ROLES} | {
    name: name for name in ("format", "delimiter", "time_unit", "time_format")
}


def read_tables(columns: Any) -> dict[str, dict[str, Any]]:
    """The options that a mapping file, or its tables, give to each pattern of files."""
    name = "columns"
    if not isinstance(columns, Mapping):
        name = str(columns)
        content = read_whole(find_files(name)[0])
        try:
            columns = tomllib.loads(content.decode("utf-8-sig"))
        except ValueError as error:
            raise InputError(
                f"{name} is not a TOML file ({first_line(error)})"
            ) from None
    tables: dict[str, dict[str, Any]] = {pattern: {} for pattern in columns}
    for pattern, table in columns.items():
        entries = table.items() if isinstance(table, Mapping) else [(pattern, table)]
        for key, value in entries:
            texts = value if key == "session" and isinstance(value, list) else [value]
            is_text = all(isinstance(text, str) for text in texts)
            if key is pattern or key not in OPTIONS or not is_text:
                raise InputError(
                    f"{name}: {key} = {value!r} can't be used; write a table for each pattern of "
                    f"files, with texts for {', '.join(OPTIONS)}"
                )
            tables[pattern][OPTIONS[key]] = value
    return tables


def options_by_file(
    files: list[File], format: str | None, options: LogOptions
) -> list[tuple[str | None, LogOptions]]:
    """The format of each file, if it is named, and its options."""
    tables = read_tables(options.columns)
    chosen = []
    for file in files:
        named: dict[str, Any] = {"format": format}
        for pattern, table in tables.items():
            if is_like(file, pattern):
                named |= table
                break
        chosen.append((named.pop("format"), replace(options, **named)))
    return chosen


def is_like(file: File, pattern: str) -> bool:
    """A pattern describes the end of a path."""
    return fnmatchcase(f"/{file}", f"*/{pattern.removeprefix('./')}")


def warn_of_unused(columns: Any, files: list[File], progress: Progress) -> None:
    for pattern in read_tables(columns):
        if not any(is_like(file, pattern) for file in files):
            progress.message(
                f"warning: no file is like {pattern!r}, a table of --columns"
            )
