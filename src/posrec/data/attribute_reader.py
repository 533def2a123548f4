"""What turns the columns of items into attributes: learned from the items of a training, and used
again for items that come later. It needs numpy alone.

A category or a word is a value, and so is one of ten ranges of a number; vectors are read as they
are. A value of a single item says no more than its id, so it is not learned.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError

KINDS = ("category", "number", "words", "vector")  # see item_attributes.py
RANGES = 10  # of a number
MAX_WORDS = 50_000  # of a column; the most frequent ones

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


class Entries(NamedTuple):
    """The attributes of items: item `rows[e]` (from 0) has the value `values[e]` with a weight."""

    rows: Numbers  # [E] sorted
    values: Numbers  # [E]
    weights: Floats  # [E] those of an item's values of one column add up to 1
    vectors: Floats | None  # [items, k], zeros where an item has none


@dataclass(frozen=True)
class ColumnReader:
    """One column: the values that are known of it, in order."""

    name: str
    kind: str
    values: Sequence[str | int] = ()  # texts, or numbers of ranges
    bounds: Sequence[float] = ()  # of the ranges
    width: int = 0  # of the vectors

    @classmethod
    def learn(cls, name: str, kind: str, column: Sequence[Any]) -> Self:
        if kind == "vector":
            return cls(name, kind, width=width_of(name, column))
        bounds = range_bounds(name, column) if kind == "number" else ()
        bags = cls(name, kind, bounds=bounds).bags(column)
        counts = Counter(value for bag in bags for value in set(bag))
        shared = [value for value, count in counts.most_common(MAX_WORDS) if count > 1]
        return cls(name, kind, shared, bounds)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Raises an error if `read` could not use it."""
        column = cls(**content)
        is_vector = column.kind == "vector"
        bounds = np.array(column.bounds, np.float64)
        is_sound = (
            isinstance(column.name, str)
            and column.kind in KINDS
            and isinstance(column.values, list | tuple)
            and len(set(column.values)) == len(column.values)
            and not (is_vector and column.values)
            and bounds.ndim == 1
            and bool((np.diff(bounds) > 0).all())
            and type(column.width) is int
            and (column.width >= 0 if is_vector else column.width == 0)
        )
        if not is_sound:
            raise ValueError(f"its column {str(column.name)[:100]!r} is damaged")
        return column

    def bags(self, column: Sequence[Any]) -> list[list[Any]]:
        """The values of each item, known or not."""
        if self.kind == "number":
            amounts = np.array([as_amount(value) for value in column])
            ranges = np.searchsorted(np.array(self.bounds), amounts, side="right")
            has_amount = np.isfinite(amounts)
            return [
                [number] if present else []
                for number, present in zip(ranges.tolist(), has_amount, strict=True)
            ]
        if self.kind == "words":
            texts = ["" if value is None else str(value).lower() for value in column]
            return [sorted(set(re.findall(r"\w+", text))) for text in texts]
        return [[] if value is None else [str(value)] for value in column]

    def vectors(self, column: Sequence[Any]) -> Floats:
        """[items, width], scaled to length 1; zeros where an item has none."""
        if width_of(self.name, column, self.width) != self.width:
            raise InputError(
                f"column {self.name!r} must have vectors of {self.width} numbers"
            )
        zeros = [0.0] * self.width
        rows = [zeros if value is None else value for value in column]
        try:
            vectors = np.array(rows, np.float32).reshape(len(rows), self.width)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"column {self.name!r} must have vectors of numbers ({error})"
            ) from None
        vectors = np.nan_to_num(vectors, posinf=0, neginf=0)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Floats = vectors / np.maximum(lengths, 1e-12)
        return scaled


class AttributeReader:
    """Reads the attributes of items from their columns. Value v of the first column is number v,
    and those of the other columns follow."""

    def __init__(self, columns: Sequence[ColumnReader]) -> None:
        self.columns = list(columns)
        self.number = sum(len(column.values) for column in columns)
        self.width = sum(self.widths.values())

    @classmethod
    def learn(
        cls, kinds: Mapping[str, str], columns: Mapping[str, Sequence[Any]]
    ) -> Self:
        return cls(
            [
                ColumnReader.learn(name, kind, columns[name])
                for name, kind in kinds.items()
            ]
        )

    @classmethod
    def from_json(cls, content: Any) -> Self:
        columns = [ColumnReader.from_json(column) for column in content]
        if len({column.name for column in columns}) != len(columns):
            raise ValueError("it has a column twice")
        return cls(columns)

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(column) for column in self.columns]

    @property
    def names(self) -> list[tuple[str, str, str | int]]:
        """Of the values, in order: column, kind and value."""
        return [
            (column.name, column.kind, value)
            for column in self.columns
            for value in column.values
        ]

    @property
    def widths(self) -> dict[str, int]:
        """Of the columns of vectors, in order."""
        return {column.name: column.width for column in self.columns if column.width}

    def read(self, columns: Mapping[str, Sequence[Any]], items: int) -> Entries:
        """The attributes of items; a column that they do not have says nothing about them."""
        rows: list[int] = []
        values: list[int] = []
        weights: list[float] = []
        vectors: list[Floats] = []
        start = 0
        for reader in self.columns:
            column = columns.get(reader.name) or [None] * items
            if reader.kind == "vector":
                vectors.append(reader.vectors(column))
                continue
            numbers = {value: start + n for n, value in enumerate(reader.values)}
            start += len(numbers)
            for row, bag in enumerate(reader.bags(column)):
                known = [numbers[value] for value in bag if value in numbers]
                rows += [row] * len(known)
                values += known
                weights += [1 / max(1, len(known))] * len(known)
        order = np.argsort(np.array(rows, np.int64), kind="stable")
        return Entries(
            np.array(rows, np.int64)[order],
            np.array(values, np.int64)[order],
            np.array(weights, np.float32)[order],
            np.concatenate(vectors, 1) if vectors else None,
        )


def as_amount(value: Any) -> float:
    """NaN for what is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def range_bounds(name: str, column: Sequence[Any]) -> list[float]:
    """The bounds of ranges with about as many items each."""
    try:
        amounts = np.array([float(value) for value in column if value is not None])
    except (TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} is not a column of numbers ({error}); read it as {name}:category"
        ) from None
    finite = amounts[np.isfinite(amounts)]
    if not len(finite):
        return []
    shares = np.linspace(0, 1, RANGES + 1)[1:-1]
    bounds: list[float] = np.unique(np.quantile(finite, shares)).tolist()
    return bounds


def width_of(name: str, column: Sequence[Any], default: int = 0) -> int:
    """The length of a column's vectors, `default` if there is none."""
    if not all(value is None or isinstance(value, list) for value in column):
        raise InputError(
            f"column {name!r} must have vectors, lists of numbers; read it as {name}:category"
        )
    widths = {len(value) for value in column if value is not None} or {default}
    if len(widths) != 1:
        raise InputError(
            f"column {name!r} must have vectors of one length, not of {sorted(widths)}"
        )
    return widths.pop()
