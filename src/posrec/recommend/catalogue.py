"""The items of a run as requests name them: by raw ids, by columns, and by rules for every request.

The results of filters and boosts are kept, within a limit in bytes. Those of long ones are not:
clients choose the filters.
"""

import json
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from posrec.data.item_times import EXPIRES
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.recommend.filters import Attribute, FilterColumns, is_number, shown
from posrec.recommend.rank.best_items import Columns, Mask
from posrec.recommend.session import Click, as_ids

RESULTS_BYTES = 1 << 26  # of filters and boosts that are kept, half for each
BYTES_PER_ITEM = 50  # at least, so that a boost with all factors is kept
LONGEST_KEY = 10_000  # characters; the result of a longer filter or boost is not kept
OBJECT_BYTES = 1000  # of a key or a result besides its text and its arrays, at most
MOST_FACTORS = 16  # of a boost; each needs a search of its own
PUNCTUATION_BYTES = 50  # of an item in an answer: names of fields, and its score
FEW = 16  # items, or a sixteenth of all, are quicker scored one by one than searched
FEW_DENIED = 100  # items are left out after a search that finds as many more; others become a mask
ENCODER = json.JSONEncoder(sort_keys=True, default=sorted)  # sets are listed in order

Fields = dict[str, Sequence[Any]]  # columns of the items, by name
Result = TypeVar("Result")


class Candidates:
    """The items that may be recommended: those of a mask [n], or every item if it is None."""

    def __init__(self, mask: Mask | None = None) -> None:
        self.mask = mask

    @cached_property
    def few(self) -> Columns | None:
        """The columns of the items, if they are few."""
        if self.mask is None:
            return None
        is_few = np.count_nonzero(self.mask) <= max(FEW, len(self.mask) // FEW)
        return np.flatnonzero(self.mask) if is_few else None

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the items of a mask."""
        assert self.mask is not None
        numbers: list[int] = (np.flatnonzero(self.mask) + 1).tolist()
        return numbers

    def __and__(self, other: "Candidates") -> "Candidates":
        if self.mask is None:
            return other
        if other.mask is None:
            return self
        return Candidates(self.mask & other.mask)


EVERY_ITEM = Candidates()


def mask_of(items: int, numbers: list[int]) -> Mask:
    mask = np.zeros(items, np.bool_)
    mask[np.array(numbers, np.int64) - 1] = True
    return mask


class LatestResults(Generic[Result]):
    """The results of `compute` for the latest filters, or boosts: as many as fit if each has the
    longest key and `candidates` masks."""

    def __init__(
        self, compute: Callable[[Any], Result], items: int, candidates: int
    ) -> None:
        most_bytes = max(RESULTS_BYTES, BYTES_PER_ITEM * items) // 2
        mask_bytes = items + items // 2 + OBJECT_BYTES  # with its `few`
        result_bytes = LONGEST_KEY + OBJECT_BYTES + candidates * mask_bytes
        self.compute = compute
        self.most = max(1, most_bytes // result_bytes)
        self.results: dict[str | None, Result] = {}  # the latest come last
        self.lock = threading.Lock()  # a server asks from two threads

    def get(self, rule: Any) -> Result:
        key = key_of(rule)
        with self.lock:
            result = self.results.pop(key, None)
        if result is None:
            result = self.compute(rule)
        if key is not None:
            with self.lock:
                self.results[key] = result
                if len(self.results) > self.most:
                    self.results.pop(next(iter(self.results)))
        return result


def key_of(rule: Any) -> str | None:
    """A filter or boost as text; None if that is too long. To write a long one at once, and not
    piece by piece up to the limit, would hold Python's lock for long."""
    try:
        pieces = list(islice(ENCODER.iterencode(rule), LONGEST_KEY + 1))
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            f"a filter or boost must hold only texts, numbers and lists, not {shown(rule)}"
        ) from None
    key = "".join(pieces)
    return key if len(key) <= LONGEST_KEY else None


class Catalogue:
    """Items 1..`items` of the vocabulary, which may hold more items than the model knows.

    `attributes` are their columns, and `rules` the items that may be recommended at all. A server
    that reads them again makes another catalogue.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        items: int,
        attributes: FilterColumns | None = None,
        rules: Candidates = EVERY_ITEM,
    ) -> None:
        self.vocabulary = vocabulary
        self.items = items
        self.rules = rules
        self.attributes = attributes or FilterColumns(vocabulary.columns, items)
        # Neither function refers to the catalogue: that would be a reference cycle.
        matching = self.attributes.matching
        self.filters = LatestResults(
            lambda filter: Candidates(matching(filter)) & rules, items, 1
        )
        boosted = partial(items_by_factor, self.attributes)
        self.boosts = LatestResults(boosted, items, MOST_FACTORS)
        # Without expired items: from when until when, and the catalogue.
        self.current: tuple[float, float, Catalogue | None] = (0.0, 0.0, None)

    def with_rules(
        self, allow: Collection[Click] | None, deny: Collection[Click] | None
    ) -> "Catalogue":
        rules = EVERY_ITEM if allow is None else Candidates(self.mask(allow))
        if deny:
            rules = Candidates(~self.mask(deny)) & rules
        return Catalogue(self.vocabulary, self.items, self.attributes, rules)

    def with_columns(self, columns: Mapping[str, Sequence[Any]]) -> "Catalogue":
        """With these columns, whatever it had before."""
        attributes = FilterColumns(columns, self.items, before=self.attributes)
        return Catalogue(self.vocabulary, self.items, attributes, self.rules)

    def at(self, now: float, keep: bool = False) -> "Catalogue":
        """Without the items that have expired by then. What is kept, for the clock, is shared by
        requests until another item expires."""
        ends = self.attributes.moments(EXPIRES)
        if ends is None:
            return self
        start, end, alive = self.current
        if not start <= now < end:
            expired = ends <= now
            rules = Candidates(~expired) & self.rules if expired.any() else self.rules
            alive = Catalogue(self.vocabulary, self.items, self.attributes, rules)
            alive.boosts = self.boosts
            if keep:
                end = float(ends.min(where=ends > now, initial=math.inf))
                self.current = (now, end, alive)
        assert alive is not None
        return alive

    @cached_property
    def titles(self) -> Sequence[Any] | None:
        column = self.attributes.columns.get("title")
        return None if column is None else column.values

    def title(self, number: int) -> str | None:
        title = None if self.titles is None else self.titles[number - 1]
        return None if title is None else str(title)

    def number(self, item: str) -> int | None:
        """None for an item that the model does not know."""
        number = self.vocabulary.find(item)
        return None if number is None or number > self.items else number

    def numbers(self, ids: Collection[Click]) -> list[int]:
        """The numbers of the known items, in order; unknown ids are ignored."""
        numbers = map(self.number, as_ids(ids))
        return [number for number in numbers if number is not None]

    def mask(self, ids: Collection[Click]) -> Mask:
        return mask_of(self.items, self.numbers(ids))

    def candidates(
        self,
        filter: Mapping[str, Any] | None,
        allow: Collection[Click] | None,
        deny: Collection[Click] | None,
    ) -> tuple[Candidates, frozenset[int]]:
        """The items that may be recommended, and the numbers of some to leave out of them."""
        candidates = self.filters.get(filter) if filter else self.rules
        if allow is not None:
            candidates = Candidates(self.mask(allow)) & candidates
        denied = self.numbers(deny or ())
        if len(denied) <= FEW_DENIED:
            return candidates, frozenset(denied)
        not_denied = Candidates(~mask_of(self.items, denied))
        return not_denied & candidates, frozenset()

    def fields(self, names: Sequence[str] | None) -> Fields | None:
        if names is None:
            return None
        if isinstance(names, str):
            raise InputError(f"fields must be a list of column names, not {names!r}")
        return {name: self.attributes[name].values for name in names}

    def item_bytes(self, names: Sequence[str] | None) -> float:
        """An estimate for an item in an answer with these columns."""
        size = self.plain_item_bytes
        for name in {*(names or ())}:
            column = self.attributes.columns.get(name)
            if column is not None:
                size += len(name) + 4 + column.mean_bytes
        return size

    @cached_property
    def plain_item_bytes(self) -> float:
        ids = Attribute("item", self.vocabulary.ids[: self.items])
        size = PUNCTUATION_BYTES + ids.mean_bytes
        title = self.attributes.columns.get("title")
        return size if title is None else size + title.mean_bytes


def values_of(number: int, fields: Fields) -> dict[str, Any]:
    return {name: values[number - 1] for name, values in fields.items()}


def items_by_factor(
    attributes: FilterColumns, boost: Mapping[str, Mapping[str, float]]
) -> dict[float, Candidates]:
    """The items of each factor of a boost, which is 1 for those that it does not name."""
    columns = boost.values() if isinstance(boost, Mapping) else [boost]
    if not all(isinstance(column, Mapping) for column in columns):
        raise InputError(
            f'boost must be like {{"brand": {{"own": 1.2}}}}, not {shown(boost)}'
        )
    factors = np.ones(attributes.items)
    for name, column in boost.items():
        for value, factor in column.items():
            if not is_number(factor) or not 0.001 <= factor <= 1000:
                raise InputError(
                    f"a factor of boost must be between 0.001 and 1000, not {shown(factor)}"
                )
            factors[attributes[name].index.having([value])] *= factor
    different = np.unique(factors)
    if len(different) > MOST_FACTORS:
        raise InputError(
            f"boost has {len(different)} different factors of items; at most {MOST_FACTORS} work"
        )
    return {float(factor): Candidates(factors == factor) for factor in different}
