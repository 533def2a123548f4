"""The options of `recommend` and `score` that say which items are asked for, and how they are read."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posrec.errors import InputError

if TYPE_CHECKING:
    from posrec.recommend.plan import AnswerRules

K = Annotated[int | None, typer.Option("-k", help="How many items; 20 by default.")]
Allow = Annotated[Path | None, typer.Option(help="Recommend only these items: a file with one id per line.")]
Deny = Annotated[Path | None, typer.Option(help="Never recommend these items: a file with one id per line.")]
ExcludeSeen = Annotated[bool, typer.Option("--exclude-seen", help="Leave out the items of the session.")]
FilterOption = Annotated[
    list[str] | None,
    typer.Option("--filter", help="COLUMN=VALUE,VALUE or COLUMN<=NUMBER or COLUMN>=NUMBER or JSON. Can be repeated."),
]
Pin = Annotated[list[str] | None, typer.Option("--pin", help="Put this item first. Can be repeated.")]
Boost = Annotated[
    list[str] | None,
    typer.Option("--boost", help="COLUMN=VALUE:FACTOR, a factor for the items' chances. Can be repeated."),
]
Diversify = Annotated[
    str | None,
    typer.Option(help="From 0 to 1: prefer items that differ; or a column: one item of each of its values."),
]
Fields = Annotated[str | None, typer.Option(help="Columns to show with each item, with commas between them.")]

CONDITION = re.compile(r"(?P<column>[^=<>]+)(?P<sign><=|>=|=)(?P<value>.*)", re.DOTALL)
BOOST = re.compile(r"(?P<column>[^=]+)=(?P<value>.*):(?P<factor>[^:]+)", re.DOTALL)


def answer_rules(
    exclude_seen: bool,
    allow: Path | None,
    deny: Path | None,
    filters: list[str] | None,
    pin: list[str] | None,
    boosts: list[str] | None,
    diversify: str | None,
    fields: str | None,
) -> "AnswerRules":
    """The options as `Recommender.recommend` takes them."""
    from posrec.recommend.session import read_ids

    return {
        "exclude_seen": exclude_seen,
        "allow": None if allow is None else read_ids(allow),
        "deny": None if deny is None else read_ids(deny),
        "filter": parse_filters(filters or []),
        "pin": pin,
        "boost": parse_boosts(boosts or []),
        "diversify": parse_diversify(diversify),
        "fields": None if fields is None else fields.split(","),
    }


def parse_filters(texts: list[str]) -> dict[str, Any] | None:
    """Several conditions on one column: its values are any of those listed, its numbers within all bounds.

    >>> parse_filters(["category=tents,mats", "price<=200", "price>=10"])
    {'category': ['tents', 'mats'], 'price': {'max': 200.0, 'min': 10.0}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                found.update(json.loads(text))
            except ValueError as error:
                raise InputError(f"--filter {text}: it is not JSON ({error})") from None
            continue
        parts = CONDITION.fullmatch(text)
        if parts is None:
            raise InputError(f"--filter {text}: it must be COLUMN=VALUE,VALUE or COLUMN<=NUMBER, or a JSON object")
        column, sign, value = parts["column"].strip(), parts["sign"], parts["value"]
        before = found.get(column)
        if sign == "=":
            found[column] = [*(before if isinstance(before, list) else []), *value.split(",")]
        else:
            bound = {"max" if sign == "<=" else "min": number(value, f"--filter {text}")}
            found[column] = {**(before if isinstance(before, dict) else {}), **bound}
    return found or None


def parse_boosts(texts: list[str]) -> dict[str, dict[str, float]] | None:
    """
    >>> parse_boosts(["brand=own:1.2", "brand=other:0.5"])
    {'brand': {'own': 1.2, 'other': 0.5}}
    """
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        parts = BOOST.fullmatch(text)
        if parts is None:
            raise InputError(f"--boost {text}: it must be COLUMN=VALUE:FACTOR, such as brand=own:1.2")
        found.setdefault(parts["column"], {})[parts["value"]] = number(parts["factor"], f"--boost {text}")
    return found or None


def parse_diversify(text: str | None) -> float | str | None:
    """A number, or else the name of a column."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a number") from None
