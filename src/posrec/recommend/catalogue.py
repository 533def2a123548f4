"""The items of a run as requests name them, by raw ids, by their columns, and by rules that hold for every request; and
`Candidates`, the items among them that may be recommended.

A filter is worked out once and kept, so a request with a filter that was used before costs a lookup. What is kept is
bounded in bytes, and a filter that is itself long is worked out every time: clients choose the filters.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.recommend.filters import Attribute, Attributes, shown
from posrec.recommend.rank.best_items import Columns, Mask
from posrec.recommend.session import Click, as_ids

RESULTS_BYTES = 1 << 26  # of results that are kept, with their keys; for large catalogues BYTES_PER_ITEM
BYTES_PER_ITEM = 50  # so that a boost with as many factors as are allowed is kept
LONGEST_KEY = 10_000  # characters or values; the result of a longer filter or boost is not kept
OBJECT_BYTES = 1000  # of a key or a result beside its text and its arrays, at most
PUNCTUATION_BYTES = 50  # of an item in an answer: names of fields, and its score
FEW = 16  # at most one item in so many is few: scoring them one by one is quicker than a search through all
FEW_DENIED = 100  # a search finds so many items more, and leaves them out afterwards; more become a mask


Fields = dict[str, Sequence[Any]]  # columns of the items, by name
ByFactor = dict[float, "Candidates"]  # the items of each factor of a boost; those of a filter have the factor 1


class Candidates:
    """Some of n items, given as a mask [n] or as sorted columns; the other form is derived when it is needed."""

    def __init__(self, items: int, mask: Mask | None = None, columns: Columns | None = None) -> None:
        self.items, self.given_mask, self.given_columns = items, mask, columns

    @property
    def most_bytes(self) -> int:
        """Of memory, with everything that may be derived."""
        given = self.given_columns if self.given_mask is None else self.given_mask
        return (0 if given is None else given.nbytes) + 2 * self.items + OBJECT_BYTES

    @cached_property
    def mask(self) -> Mask:
        """[n] True for items that may be recommended."""
        if self.given_mask is not None:
            return self.given_mask
        mask = np.zeros(self.items, dtype=np.bool_)
        mask[self.given_columns] = True
        return mask

    @cached_property
    def count(self) -> int:
        return len(self.given_columns) if self.given_columns is not None else int(np.count_nonzero(self.mask))

    @property
    def columns(self) -> Columns:
        return self.given_columns if self.given_columns is not None else np.flatnonzero(self.mask)

    @cached_property
    def few(self) -> Columns | None:
        """The columns, where they are few."""
        return self.columns if self.count * FEW <= self.items or self.count <= FEW else None

    @cached_property
    def excluded(self) -> Mask:
        """[n] True for items that must not be recommended."""
        return ~self.mask

    def and_also(self, other: "Candidates | None") -> "Candidates":
        """The items that are in both."""
        if other is None:
            return self
        for one, another in ((self, other), (other, self)):
            if one.given_columns is not None:
                return Candidates(self.items, columns=one.given_columns[another.mask[one.given_columns]])
        return Candidates(self.items, self.mask & other.mask)


def only(items: int, numbers: list[int]) -> Candidates:
    """The items with these numbers."""
    return Candidates(items, columns=np.unique(np.array(numbers, dtype=np.int64)) - 1)


def all_but(items: int, numbers: list[int]) -> Candidates:
    """All items but those with these numbers."""
    mask = np.ones(items, dtype=np.bool_)
    mask[np.array(numbers, dtype=np.int64) - 1] = False
    return Candidates(items, mask)


class ResultCache:
    """The latest results of filters and boosts, which are kept for the next time that the same is asked for."""

    def __init__(self, items: int) -> None:
        self.results: OrderedDict[str, ByFactor] = OrderedDict()
        self.bytes, self.most_bytes = 0, max(RESULTS_BYTES, BYTES_PER_ITEM * items)
        self.lock = threading.Lock()  # a server asks from two threads

    def get(self, kind: str, asked: Mapping[str, Any], compute: Callable[[Any], ByFactor]) -> ByFactor:
        """The result of `compute(asked)`."""
        if values_in(asked) > LONGEST_KEY:
            return compute(asked)  # to write such a key down would keep Python's lock for long
        try:
            key = kind + json.dumps(asked, sort_keys=True, default=sorted)  # sets are listed in order
        except (TypeError, ValueError):
            raise InputError(f"the {kind} {shown(asked)} must hold only texts, numbers and lists") from None
        with self.lock:
            if key in self.results:
                self.results.move_to_end(key)
                return self.results[key]
        result = compute(asked)
        if len(key) <= LONGEST_KEY:
            with self.lock:
                if key not in self.results:  # another thread may have computed it too
                    self.results[key] = result
                    self.bytes += bytes_of(key, result)
                while self.bytes > self.most_bytes:
                    self.bytes -= bytes_of(*self.results.popitem(last=False))
        return result


def values_in(asked: Any) -> int:
    """How many values, names and lists a filter or boost is made of."""
    if isinstance(asked, Mapping):
        asked = [*asked, *asked.values()]
    return 1 + sum(map(values_in, asked)) if isinstance(asked, list | tuple | set | frozenset) else 1


def bytes_of(key: str, result: ByFactor) -> int:
    return OBJECT_BYTES + len(key) + sum(items.most_bytes for items in result.values())


class Catalogue:
    """Items 1..`items` of the vocabulary, which may hold more items than the model knows.

    `attributes` are their columns, those of the vocabulary by default, and `rules` the items that may be recommended at
    all, None for every item. Neither ever changes: a server that reads them again makes another catalogue, whose cache
    is empty. So a request has the old columns and rules or the new ones.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        items: int,
        attributes: Attributes | None = None,
        rules: Candidates | None = None,
    ) -> None:
        self.vocabulary, self.items, self.rules = vocabulary, items, rules
        self.attributes = Attributes(vocabulary.columns, items) if attributes is None else attributes
        self.results = ResultCache(items)

    def with_rules(self, allow: Collection[Click] | None, deny: Collection[Click] | None) -> "Catalogue":
        """Recommends only the items of `allow`, where it is given, and none of `deny`."""
        rules = None if allow is None else only(self.items, self.numbers(allow))
        if deny:
            rules = all_but(self.items, self.numbers(deny)).and_also(rules)
        return Catalogue(self.vocabulary, self.items, self.attributes, rules)

    def with_columns(self, columns: Mapping[str, Sequence[Any]]) -> "Catalogue":
        """These columns replace those of the vocabulary; the others of the vocabulary stay."""
        attributes = Attributes({**self.vocabulary.columns, **columns}, self.items, before=self.attributes)
        return Catalogue(self.vocabulary, self.items, attributes, self.rules)

    @cached_property
    def titles(self) -> Sequence[Any] | None:
        column = self.attributes.columns.get("title")
        return None if column is None else column.values

    def title(self, number: int) -> str | None:
        title = None if self.titles is None else self.titles[number - 1]
        return None if title is None else str(title)

    def number(self, item: str) -> int | None:
        """None for an item that the model does not know; the vocabulary may hold items that training never saw."""
        number = self.vocabulary.find(item)
        return None if number is None or number > self.items else number

    def numbers(self, ids: Collection[Click]) -> list[int]:
        """The numbers of the known items, in order; unknown ids are ignored."""
        return [number for item in as_ids(ids) if (number := self.number(item)) is not None]

    def candidates(
        self, filter: Mapping[str, Any] | None, allow: Collection[Click] | None, deny: Collection[Click] | None
    ) -> tuple[Candidates | None, frozenset[int]]:
        """The items that may be recommended, None for all of them; and numbers of items to leave out beside."""
        candidates = self.rules
        if filter:

            def matching(wanted: Mapping[str, Any]) -> ByFactor:
                return {1.0: Candidates(self.items, self.attributes.matching(wanted)).and_also(self.rules)}

            candidates = self.results.get("filter", filter, matching)[1.0]
        if allow is not None:
            candidates = only(self.items, self.numbers(allow)).and_also(candidates)
        if not deny:
            return candidates, frozenset()
        denied = self.numbers(deny)
        if len(denied) <= FEW_DENIED:
            return candidates, frozenset(denied)
        return all_but(self.items, denied).and_also(candidates), frozenset()

    def fields(self, names: Sequence[str] | None) -> Fields | None:
        """The columns of these names, for answers that show them."""
        if names is None:
            return None
        if isinstance(names, str):
            raise InputError(f"fields must be a list of column names, not {names!r}")
        return {name: self.attributes[name].values for name in names}

    def item_bytes(self, names: Sequence[str] | None = None) -> float:
        """The estimated size of an item in an answer with these columns; of a column that does not exist, nothing."""
        columns = self.attributes.columns
        more = [columns[name] for name in {*names} if name in columns] if names else []
        return self.plain_item_bytes + sum(len(column.name) + 4 + column.mean_bytes for column in more)

    @cached_property
    def plain_item_bytes(self) -> float:
        ids, title = Attribute("item", self.vocabulary.ids[: self.items]), self.attributes.columns.get("title")
        return PUNCTUATION_BYTES + ids.mean_bytes + (0 if title is None else title.mean_bytes)


def values_of(number: int, fields: Fields) -> dict[str, Any]:
    """The item's columns, by name."""
    return {name: values[number - 1] for name, values in fields.items()}
