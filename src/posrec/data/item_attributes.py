"""The columns of a vocabulary (category, brand, price, title, vectors) as values for models.

The kind of a column follows from its values unless it is named, as in `price:number`:
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
    """The columns of a setting such as `category,price:number` with their kinds; `auto`: all.

    >>> columns = {"price": ["3.50", "12"], "title": ["Red tent", None]}
    >>> chosen_columns("price,title", Vocabulary(["a", "b"], columns))
    {'price': 'number', 'title': 'words'}
    """
    columns = vocabulary.columns
    if setting == AUTO:
        kinds = {name: kind_of(name, values) for name, values in columns.items()}
        return {name: kind for name, kind in kinds.items() if kind is not None}
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


def encode_attributes(
    vocabulary: Vocabulary, columns: dict[str, str], items: int
) -> AttributeTable:
    """The attributes of items 1..items; a value of a single item says no more than its id."""
    rows = []
    values = []
    weights = []
    number = 0
    vectors = []
    for name, kind in columns.items():
        column = vocabulary.columns[name][:items]
        if kind == "vector":
            vectors.append(as_vectors(name, column))
            continue
        item_values = values_by_item(name, kind, column)
        counts = Counter(value for bag in item_values for value in set(bag))
        shared = [value for value, count in counts.most_common(MAX_WORDS) if count > 1]
        numbers = {value: number for number, value in enumerate(shared, start=number)}
        number += len(numbers)
        for row, bag in enumerate(item_values):
            entries = [numbers[value] for value in bag if value in numbers]
            rows += [row] * len(entries)
            values += entries
            weights += [1 / max(1, len(entries))] * len(entries)
    row_of_entry = torch.tensor(rows, dtype=torch.int64)
    order = row_of_entry.sort(stable=True).indices
    return AttributeTable(
        row_of_entry[order],
        torch.tensor(values, dtype=torch.int64)[order],
        torch.tensor(weights)[order],
        number,
        torch.cat(vectors, 1) if vectors else None,
    )


def values_by_item(name: str, kind: str, column: Sequence[Any]) -> list[list[Any]]:
    if kind == "number":
        return ranges_by_item(name, column)
    if kind == "words":
        texts = ["" if value is None else str(value).lower() for value in column]
        return [sorted(set(re.findall(r"\w+", text))) for text in texts]
    return [[] if value is None else [str(value)] for value in column]


def ranges_by_item(name: str, column: Sequence[Any]) -> list[list[int]]:
    try:
        numbers = [np.nan if value is None else float(value) for value in column]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} is not a column of numbers ({error}); read it as {name}:category"
        ) from None
    amounts = np.array(numbers)
    finite = np.isfinite(amounts)
    if not finite.any():
        return [[] for _ in column]
    bounds = np.quantile(amounts[finite], np.linspace(0, 1, RANGES + 1)[1:-1])
    ranges = np.searchsorted(np.unique(bounds), amounts, side="right").tolist()
    return [
        [number] if has_number else []
        for number, has_number in zip(ranges, finite, strict=True)
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
    zeros = [0.0] * widths.pop()
    rows = [zeros if value is None else value for value in column]
    try:
        vectors = torch.tensor(rows, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} must have vectors of numbers ({error})"
        ) from None
    return torch.nn.functional.normalize(torch.nan_to_num(vectors), dim=1)
