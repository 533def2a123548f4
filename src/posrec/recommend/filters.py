"""Filters by the items' columns, such as {"category": ["tents", "mats"], "price": {"max": 200}}.

docs/recommending.md describes them. An item matches if every column that the filter names does.

>>> columns = {"category": ["tents", "mats", None], "price": ["120", "35.5", None]}
>>> attributes = FilterColumns(columns, items=3)
>>> attributes.matching({"category": ["tents", "mats"], "price": {"max": 100}}).tolist()
[False, True, False]
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.data.item_times import CREATED, EXPIRES, Moments, read_moments
from posrec.errors import InputError
from posrec.recommend.rank.best_items import Columns, Mask

BOUNDS: dict[str, Callable[[Any, float], Mask]] = {
    "min": np.greater_equal,
    "max": np.less_equal,
    "above": np.greater,
    "below": np.less,
}
DECIMAL = re.compile(r"-?\d+\.\d+")
SAMPLE = 100  # values from which the size of a column is estimated
SHAPES = (
    'a value, a list of values, {"min": ..., "max": ...}, {"above": ..., "below": ...} '
    'or {"not": ...}'
)


class ValueIndex:
    """Which items have a value: pairs of an item's column and the code of one of its values."""

    def __init__(self, values: Sequence[Any]) -> None:
        codes: dict[str | None, int] = {}  # by value
        pair_codes = []
        pair_columns = []
        for column, value in enumerate(values):
            for single in value if isinstance(value, list) else (value,):
                pair_codes.append(codes.setdefault(as_text(single), len(codes)))
                pair_columns.append(column)
        self.codes = codes
        self.pair_codes = np.array(pair_codes, np.int64)
        self.pair_columns = np.array(pair_columns, np.int64)
        # The columns, grouped by code; those of code c begin at starts[c].
        self.grouped = self.pair_columns[np.argsort(self.pair_codes, kind="stable")]
        counts = np.bincount(self.pair_codes, minlength=len(codes))
        self.starts = np.concatenate([[0], counts.cumsum()])

    def having(self, values: Iterable[Any]) -> Columns:
        """The columns of the items with any of these values, in groups of equal values."""
        groups = [self.grouped[:0]]
        for text in dict.fromkeys(map(as_text, values)):
            if text not in self.codes and text is not None and DECIMAL.fullmatch(text):
                text = as_text(float(text))  # "8.50" finds the number 8.5
            if text in self.codes:
                code = self.codes[text]
                start, end = self.starts[code : code + 2]
                groups.append(self.grouped[start:end])
        return np.concatenate(groups)


class Attribute:
    """One column of the items. What a condition needs is built at its first use and kept."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name = name
        self.values = values

    @cached_property
    def index(self) -> ValueIndex:
        return ValueIndex(self.values)

    @property
    def is_indexed(self) -> bool:
        return "index" in vars(self)

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64] | None:
        """[n] the values as numbers, NaN for no value; None if a value is not a number."""
        try:
            numbers = np.array([as_number(value) for value in self.values], np.float64)
        except (TypeError, ValueError):
            return None
        return None if np.isnan(numbers).all() else numbers

    @cached_property
    def moments(self) -> Moments:
        """[n] the values as times; NaN for no value."""
        return read_moments(f"column {self.name!r}", self.values)

    @cached_property
    def groups(self) -> Columns:
        """[n] equal for items with the same (first) value; an item without a value is a group of
        its own."""
        groups = -1 - np.arange(len(self.values), dtype=np.int64)
        # In reverse, so that of several values the first is written last.
        groups[self.index.pair_columns[::-1]] = self.index.pair_codes[::-1]
        without_value = self.index.having([None])
        groups[without_value] = -1 - without_value
        return groups

    @cached_property
    def mean_bytes(self) -> float:
        """Of a value as JSON, from a sample of them."""
        sample = self.values[:: max(1, len(self.values) // SAMPLE)]
        sizes = [len(json.dumps(value, default=str)) for value in sample]
        return sum(sizes) / max(1, len(sizes))

    def having(self, values: Iterable[Any]) -> Mask:
        mask = np.zeros(len(self.values), dtype=np.bool_)
        mask[self.index.having(values)] = True
        return mask

    def matching(self, condition: Any) -> Mask:
        if not isinstance(condition, Mapping):
            return self.having(self.listed(condition))
        if not condition or condition.keys() - {*BOUNDS, "not"}:
            raise self.wrong_shape(condition)
        mask = ~self.having(self.listed(condition.get("not", [])))
        for name in BOUNDS:
            if name in condition:
                mask &= self.within(name, condition[name])
        return mask

    def within(self, name: str, bound: Any) -> Mask:
        """[n] Whether an item's number is within a bound; for null, whether it has one."""
        if bound is not None and (not is_number(bound) or bound != bound):
            raise InputError(
                f"{name} in the filter of {self.name!r} must be a number, not {shown(bound)}"
            )
        if self.numbers is None:
            raise InputError(
                f"column {self.name!r} does not hold numbers, so {name} can't be used for it"
            )
        if bound is None:
            return ~np.isnan(self.numbers)
        with np.errstate(invalid="ignore"):  # NaN is within no bound
            return BOUNDS[name](self.numbers, as_float(bound))

    def listed(self, values: Any) -> list[Any]:
        is_list = isinstance(values, list | tuple | set | frozenset)
        listed = list(values) if is_list else [values]
        for kind in set(map(type, listed)):  # a filter may list many values
            if not issubclass(kind, str | int | float | None):
                raise self.wrong_shape(values)
        return listed

    def wrong_shape(self, condition: Any) -> InputError:
        return InputError(
            f"the filter of {self.name!r} must be {SHAPES}, not {shown(condition)}"
        )


class FilterColumns:
    """The columns of the items 1..n that a model knows; the vocabulary may hold more items.

    What was built for columns of `before` is used again for columns with the same values.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]],
        items: int,
        before: "FilterColumns | None" = None,
    ) -> None:
        self.items = items
        self.columns: dict[str, Attribute] = {}
        for name, values in columns.items():
            attribute = Attribute(name, values[:items])
            previous = None if before is None else before.columns.get(name)
            if previous is not None and previous.values == attribute.values:
                attribute = previous
            self.columns[name] = attribute

    def __getitem__(self, name: str) -> Attribute:
        if name not in self.columns:
            if not self.columns:
                raise InputError(
                    f"the items have no columns, so no {name[:100]!r}; "
                    "posrec prepare --items FILE adds them"
                )
            raise InputError(
                f"the items have no column {name[:100]!r}; they have {', '.join(self.columns)}"
            )
        return self.columns[name]

    def prepare(self) -> None:
        """Build what filters need, so that the first is as quick as others; not of titles and
        lists."""
        for name, attribute in self.columns.items():
            has_lists = any(isinstance(value, list) for value in attribute.values[:100])
            if name != "title" and not has_lists:
                attribute.index, attribute.numbers  # noqa: B018  # built and kept
            if name in (CREATED, EXPIRES):
                attribute.moments  # noqa: B018

    def moments(self, name: str) -> Moments | None:
        return self.columns[name].moments if name in self.columns else None

    def matching(self, filter: Mapping[str, Any]) -> Mask:
        if not isinstance(filter, Mapping):
            raise InputError(
                f"a filter must be a mapping from columns to values, not {shown(filter)}"
            )
        mask = np.ones(self.items, dtype=np.bool_)
        for name, condition in filter.items():
            mask &= self[name].matching(condition)
        return mask


def as_text(value: Any) -> str | None:
    """How values are compared; 42, 42.0 and "42" are the same, and so are true and "True"."""
    # The quickest test comes first, since a filter may list many values.
    if type(value) is int:
        return str(value)
    if value is None or isinstance(value, str):
        return value.lower() if value in ("True", "False") else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_number(value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, str) and not is_number(value):
        raise TypeError(value)
    return float(value)


def as_float(value: float) -> float:
    """A whole number may be too large for a float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
