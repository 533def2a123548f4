"""The items of a run as requests name them: by raw ids, by their columns, and by rules that hold for every request.

A filter is worked out once and kept, so a request with a filter that was used before costs a lookup.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.recommend.attributes import Attributes, shown
from posrec.recommend.best_items import Mask
from posrec.recommend.candidates import Candidates, all_but, only
from posrec.recommend.session import Click, as_ids

KEPT_BYTES = 1 << 26  # of masks that are kept
FEWEST_KEPT = 8
FEW_DENIED = 100  # a search finds so many items more, and leaves them out afterwards; more become a mask


Fields = dict[str, Sequence[Any]]  # columns of the items, by name


@dataclass
class Held:
    """What holds until the rules change: the rules themselves, and what was worked out under them."""

    rules: Candidates | None = None
    kept: OrderedDict[str, Any] = field(default_factory=OrderedDict)


class Catalogue:
    """Items 1..`items` of the vocabulary, which may hold more items than the model knows."""

    def __init__(self, vocabulary: Vocabulary, items: int) -> None:
        self.vocabulary, self.items = vocabulary, items
        self.attributes = Attributes(vocabulary.columns, items)
        self.held = Held()

    def number(self, item: str) -> int | None:
        """None for an item that the model does not know; the vocabulary may hold items that training never saw."""
        number = self.vocabulary.find(item)
        return None if number is None or number > self.items else number

    def numbers(self, ids: Collection[Click]) -> list[int]:
        """The numbers of the known items, in order; unknown ids are ignored."""
        return [number for item in as_ids(ids) if (number := self.number(item)) is not None]

    def set_rules(self, allow: Collection[Click] | None, deny: Collection[Click] | None) -> None:
        """Recommend from now on only the items of `allow`, where it is given, and none of `deny`."""
        rules = None if allow is None else only(self.items, self.numbers(allow))
        if deny:
            rules = all_but(self.items, self.numbers(deny)).and_also(rules)
        self.held = Held(rules)  # at once, so that a request in another thread has the old rules or the new ones

    def candidates(
        self, filter: Mapping[str, Any] | None, allow: Collection[Click] | None, deny: Collection[Click] | None
    ) -> tuple[Candidates | None, frozenset[int]]:
        """The items that may be recommended, None for all of them; and numbers of items to leave out beside."""
        held = self.held
        found = held.rules
        if filter:

            def matching(wanted: Mapping[str, Any]) -> Candidates:
                return Candidates(self.items, self.attributes.matching(wanted)).and_also(held.rules)

            found = keep(held.kept, "filter", filter, matching, most=self.most_kept)
        if allow is not None:
            found = only(self.items, self.numbers(allow)).and_also(found)
        if not deny:
            return found, frozenset()
        denied = self.numbers(deny)
        if len(denied) <= FEW_DENIED:
            return found, frozenset(denied)
        return all_but(self.items, denied).and_also(found), frozenset()

    @property
    def most_kept(self) -> int:
        return max(FEWEST_KEPT, KEPT_BYTES // self.items)

    def kept(self, kind: str, asked: Mapping[str, Any], work_out: Callable[[Any], Any]) -> Any:
        """As `keep`, for what does not depend on the rules."""
        return keep(self.held.kept, kind, asked, work_out, self.most_kept)

    def fields(self, names: Sequence[str] | None) -> Fields | None:
        """The columns of these names, for answers that show them."""
        if names is None:
            return None
        if isinstance(names, str):
            raise InputError(f"fields must be a list of column names, not {names!r}")
        return {name: self.attributes[name].values for name in names}

    def group_mask(self, column: str, value: str) -> Mask:
        """[n] whether an item has this value in a column."""
        return self.attributes[column].having([value])


def keep(
    kept: OrderedDict[str, Any], kind: str, asked: Mapping[str, Any], work_out: Callable[[Any], Any], most: int
) -> Any:
    """The result of `work_out(asked)`, kept for the next time that the same is asked for."""
    try:
        key = kind + json.dumps(asked, sort_keys=True, default=sorted)  # sets are listed in order
    except (TypeError, ValueError):
        raise InputError(f"the {kind} {shown(asked)} must hold only texts, numbers and lists") from None
    # A server asks from two threads: each line below is safe alone, and what another thread has dropped is put back.
    found = kept.pop(key, None)
    if found is None:
        found = work_out(asked)
    kept[key] = found
    while len(kept) > most:
        with suppress(KeyError):  # another thread has emptied it
            kept.popitem(last=False)
    return found


def values_of(number: int, fields: Fields) -> dict[str, Any]:
    """The item's columns, by name."""
    return {name: values[number - 1] for name, values in fields.items()}
