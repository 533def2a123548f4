"""The type of a column of items, which is the same from CSV, JSON lines, Parquet and tables.

>>> typed(pl.Series("price", ["8.73", "12", None]))[0].to_list()
[8.73, 12.0, None]
>>> typed(pl.Series("code", ["007", "12"]))[0].to_list()
['007', '12']
"""

import html

import polars as pl

from posrec.errors import plural

# Numbers of up to 15 digits, which a float keeps. Those that begin with zeros are codes.
WHOLE = r"0|[1-9]\d{0,14}"
NUMBER = rf"-?({WHOLE})(\.\d+)?"
WITH_COMMA = rf"-?({WHOLE}|[1-9]\d{{0,2}}(\.\d{{3}})+)(,\d+)?"
# Three digits after a comma may also be thousands.
SURELY_DECIMAL = r",(\d{1,2}|\d{4,})$"


def typed(column: pl.Series) -> tuple[pl.Series, str | None]:
    """The column, and what to say about it."""
    name = column.name
    if isinstance(column.dtype, pl.Decimal | pl.Float32):
        # 8.73 would have other digits if it were not written first.
        return column.cast(pl.String).cast(pl.Float64), None
    if name == "title" and not column.dtype.is_nested():
        return decoded(column.cast(pl.String))
    if not isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
        return column, None
    column = column.cast(pl.String)
    column = column.set(column == "", None)
    text = column.str.strip_chars()
    if all_are(text, f"-?({WHOLE})"):
        return text.cast(pl.Int64), None
    if all_are(text, NUMBER):
        return text.cast(pl.Float64), None
    if all_are(text, "(?i)true|false"):
        return text.str.to_lowercase() == "true", None
    if all_are(text, WITH_COMMA) and text.str.contains(SURELY_DECIMAL).any():
        example = text.filter(text.str.contains(",").fill_null(False))[0]
        points = text.str.replace_many([".", ","], ["", "."])
        note = f"column {name!r} read as numbers with decimal commas, such as {example}"
        return points.cast(pl.Float64), note
    return column, None


def all_are(text: pl.Series, pattern: str) -> bool:
    return bool(text.str.contains(f"^({pattern})$").all())


def decoded(titles: pl.Series) -> tuple[pl.Series, str | None]:
    """Titles with `&amp;` and other entities of HTML as the characters that they stand for."""
    rows = titles.str.contains("&", literal=True).fill_null(False).arg_true()
    found = titles.gather(rows).map_elements(html.unescape, return_dtype=pl.String)
    texts = titles.clone().scatter(rows, found)
    changed = int((texts != titles).sum())
    note = f"HTML entities decoded in {plural(changed, 'title')}"
    return texts, note if changed else None
