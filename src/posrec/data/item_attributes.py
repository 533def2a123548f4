"""The columns of a vocabulary (category, brand, price, title, vectors) as the values that models
read.

A column is read by its kind, which follows from its values unless it is named, as in
`price:number`:

    category   every different value is a value
    number     ten ranges with about as many items each are the values
    words      every word that at least two items have is a value
    vector     lists of numbers, all of the same length, are read as they are
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.nn.items.attribute_vectors import AttributeTable

KINDS = ("category", "number", "words", "vector")
RANGES = 10  # of a number
MAX_WORDS = 50_000  # of a column; the most frequent ones
AUTO = "auto"
NUMBER_NAMES = ("price", "cost", "amount")


def chosen_columns(setting: str, vocabulary: Vocabulary) -> dict[str, str]:
    """The columns of a setting such as `category,price:number`, with their kinds; `auto` is every
    usable column.

    >>> chosen_columns("price,title", Vocabulary(["a", "b"], {"price": ["3.50", "12"], "title": ["Red tent", None]}))
    {'price': 'number', 'title': 'words'}
    """
    columns = vocabulary.columns
    if setting == AUTO:
        return {
            name: kind
            for name, values in columns.items()
            if (kind := kind_of(name, values)) is not None
        }
    chosen = {}
    for part in setting.split(","):
        name, _, kind = part.strip().partition(":")
        if name not in columns:
            having = (
                f"those of the dataset are {', '.join(columns)}"
                if columns
                else "the dataset has none"
            )
            raise InputError(
                f"attributes={setting}: there is no column {name!r}; {having} (posrec prepare --items)"
            )
        if kind not in ("", *KINDS):
            raise InputError(
                f"attributes={setting}: {kind!r} is not a kind; choose one of {', '.join(KINDS)}"
            )
        found = kind or kind_of(name, columns[name])
        if found is None:
            raise InputError(f"attributes={setting}: column {name!r} has no values")
        chosen[name] = found
    return chosen


def kind_of(name: str, values: Sequence[Any]) -> str | None:
    """How a column is read unless its kind is named; None if it has no values."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if all(isinstance(value, list) for value in present):
        return "vector"
    if any(word in name.lower() for word in NUMBER_NAMES) or all(
        isinstance(value, float) for value in present
    ):
        return "number"
    is_text = sum(" " in str(value).strip() for value in present) > len(present) / 2
    return (
        "words"
        if is_text and len(set(map(str, present))) > len(present) / 2
        else "category"
    )


def encode_attributes(
    vocabulary: Vocabulary, columns: dict[str, str], items: int
) -> AttributeTable:
    """The attributes of items 1..items; a value of a single item says no more than its id."""
    rows = []
    values = []
    weights = []
    number = 0
    vectors: list[torch.Tensor] = []
    for name, kind in columns.items():
        column = vocabulary.columns[name][:items]
        if kind == "vector":
            vectors.append(as_vectors(name, column))
            continue
        of_items = bags(name, kind, column)
        counts = Counter(value for bag in of_items for value in set(bag))
        kept = [value for value, count in counts.most_common(MAX_WORDS) if count > 1]
        numbers = {value: number + place for place, value in enumerate(kept)}
        number += len(numbers)
        for row, bag in enumerate(of_items):
            found = [numbers[value] for value in bag if value in numbers]
            rows += [row] * len(found)
            values += found
            weights += [1 / max(1, len(found))] * len(found)
    entry = torch.tensor(rows, dtype=torch.int64)
    order = entry.sort(stable=True).indices
    return AttributeTable(
        entry[order],
        torch.tensor(values, dtype=torch.int64)[order],
        torch.tensor(weights)[order],
        number,
        torch.cat(vectors, 1) if vectors else None,
    )


def bags(name: str, kind: str, column: Sequence[Any]) -> list[list[Any]]:
    """The values of each item."""
    if kind == "words":
        return [
            sorted(set(re.findall(r"\w+", str(text).lower())))
            if text is not None
            else []
            for text in column
        ]
    if kind == "category":
        return [[str(value)] if value is not None else [] for value in column]
    try:
        amounts = np.array(
            [np.nan if value is None else float(value) for value in column]
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} is not a column of numbers ({error}); read it as {name}:category"
        ) from None
    known = np.isfinite(amounts)
    if not known.any():
        return [[] for _ in column]
    inner = np.quantile(amounts[known], np.linspace(0, 1, RANGES + 1)[1:-1])
    ranges = np.searchsorted(np.unique(inner), amounts, side="right")
    return [
        [int(place)] if fine else [] for place, fine in zip(ranges, known, strict=True)
    ]


def as_vectors(name: str, column: Sequence[Any]) -> torch.Tensor:
    """[items, k], scaled to length 1; zeros where an item has none."""
    if not all(value is None or isinstance(value, list) for value in column):
        raise InputError(
            f"column {name!r} must have vectors, lists of numbers; read it as {name}:category"
        )
    widths = {len(value) for value in column if value is not None}
    if len(widths) != 1:
        raise InputError(
            f"column {name!r} must have vectors of one length, not of {sorted(widths)}"
        )
    empty = [0.0] * widths.pop()
    try:
        given = torch.tensor(
            [empty if value is None else value for value in column], dtype=torch.float32
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} must have vectors of numbers ({error})"
        ) from None
    return torch.nn.functional.normalize(torch.nan_to_num(given), dim=1)
