"""The columns of a vocabulary (category, brand, price, title, vectors) as attributes for models.

The kind of a column follows from its values unless it is named, as in `price:number`:
category   every different value is a value
number     ten ranges with about as many items each are the values
words      every word that at least two items have is a value
vector     lists of numbers, all of the same length, are read as they are
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from posrec.data.attribute_reader import KINDS, AttributeReader
from posrec.data.item_times import CREATED, EXPIRES
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.nn.items.attribute_vectors import AttributeTable
from posrec.progress import SilentProgress

AUTO = "auto"
Report = Callable[[str], None]
SILENT = SilentProgress().message
NUMBER_NAMES = ("price", "cost", "amount")


def chosen_columns(
    setting: str,
    vocabulary: Vocabulary,
    report: Report = SILENT,
) -> dict[str, str]:
    """The columns of a setting such as `category,price:number` with their kinds; `auto`: all that
    can be read, and a report on others.

    >>> columns = {"price": ["3.50", "12"], "title": ["Red tent", None]}
    >>> chosen_columns("price,title", Vocabulary(["a", "b"], columns))
    {'price': 'number', 'title': 'words'}
    """
    columns = vocabulary.columns
    if setting == AUTO:
        kinds = {
            name: kind_of(name, values)
            for name, values in columns.items()
            if name not in (CREATED, EXPIRES)
        }
        return {
            name: kind
            for name, kind in kinds.items()
            if kind is not None and is_readable(name, kind, columns[name], report)
        }
    chosen = {}
    for choice in setting.split(","):
        name, _, named_kind = choice.strip().partition(":")
        if name not in columns:
            existing = "the dataset has none"
            if columns:
                existing = f"those of the dataset are {', '.join(columns)}"
            raise InputError(
                f"attributes={setting}: there is no column {name!r}; {existing} "
                "(posrec prepare --items)"
            )
        if named_kind not in ("", *KINDS):
            raise InputError(
                f"attributes={setting}: {named_kind!r} is not a kind; "
                f"choose one of {', '.join(KINDS)}"
            )
        kind = named_kind or kind_of(name, columns[name])
        if kind is None:
            raise InputError(f"attributes={setting}: column {name!r} has no values")
        chosen[name] = kind
    return chosen


def kind_of(name: str, values: Sequence[Any]) -> str | None:
    present = [value for value in values if value is not None]
    if not present:
        return None
    if all(isinstance(value, list) for value in present):
        return "vector"
    if any(word in name.lower() for word in NUMBER_NAMES):
        return "number"
    if all(isinstance(value, float) for value in present):
        return "number"
    with_spaces = sum(" " in str(value).strip() for value in present)
    distinct = len(set(map(str, present)))
    return "words" if min(with_spaces, distinct) > len(present) / 2 else "category"


def is_readable(name: str, kind: str, values: Sequence[Any], report: Report) -> bool:
    if kind in ("number", "vector"):
        column = {name: values}
        try:
            AttributeReader.learn({name: kind}, column).read(column, len(values))
        except InputError as error:
            report(f"attributes={AUTO} leaves a column out: {error}")
            return False
    return True


def encode_attributes(
    vocabulary: Vocabulary, columns: dict[str, str], items: int
) -> AttributeTable:
    """The attributes of items 1..items in columns of these kinds."""
    values = {name: vocabulary.columns[name][:items] for name in columns}
    reader = AttributeReader.learn(columns, values)
    entries = reader.read(values, items)
    vectors = entries.vectors
    return AttributeTable(
        torch.from_numpy(entries.rows),
        torch.from_numpy(entries.values),
        torch.from_numpy(entries.weights),
        reader.number,
        None if vectors is None else torch.from_numpy(vectors),
        reader.as_json(),
    )
