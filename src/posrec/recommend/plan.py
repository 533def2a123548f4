"""What a request asks for beside its session: how many items, which of them, and in what order.

A `Plan` is checked once and then used for one session or for many. It turns a session into queries for the ranker, and
the rankings of these queries into one list:

1. Filters, `allow`, `deny` and the rules of a server say which items may be recommended (catalogue.py).
2. `boost` multiplies the chances of some items by a factor f. Scores of trained models, which have item vectors, are
   logits or log probabilities, so log f is added; the scores of counting models, and the clicks of popular items, are
   multiplied by f. Items with the same factor keep their order among each other, so the best of each factor are found
   by a query of its own.
3. `diversify` chooses from more items than are asked for, but from a bounded number of them (rank/similarity.py).
4. `pin` puts items first, in the order given, where they are known and may be recommended.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from posrec.errors import InputError
from posrec.recommend.catalogue import ByFactor, Candidates, Catalogue, only
from posrec.recommend.filters import shown
from posrec.recommend.rank.ranker import Query, Ranking
from posrec.recommend.rank.similarity import Similarity, marginal_relevance, one_of_each_group
from posrec.recommend.session import Click, EncodedSession

DEFAULT_K = 20
MOST_FACTORS = 16  # different factors of items; each needs a search of its own
POOL_PER_ITEM = 5  # items from which each item of a diversified list is chosen
SMALLEST_POOL = 100
LARGEST_POOL = 1000  # items of a longer list that come after them keep their order
POOL_PER_GROUP = 8  # items found for each group, where one item of each group is taken
LARGEST_GROUP_POOL = 10_000
GROUP_SEARCHES = 8  # more searches where too few groups were found; each has POOL_GROWTH times as many items
POOL_GROWTH = 8


class SimilarRules(TypedDict, total=False):
    """The options of `Recommender.similar_items`."""

    allow: Collection[Click] | None
    deny: Collection[Click] | None
    filter: Mapping[str, Any] | None
    fields: Sequence[str] | None


class AnswerRules(SimilarRules, total=False):
    """The options of `Recommender.recommend`, which describes them, beside the session and k."""

    exclude_seen: bool
    pin: Sequence[Click] | None
    boost: Mapping[str, Mapping[str, float]] | None
    diversify: float | str | None


def check_options(rules: Mapping[str, Any]) -> None:
    """A TypeError, as Python's own, for an option that `Recommender.recommend` does not have."""
    if unknown := sorted(rules.keys() - AnswerRules.__annotations__.keys()):
        options = ", ".join(["k", *sorted(AnswerRules.__annotations__)])
        raise TypeError(f"recommend() has no option {unknown[0]!r}; it has {options}")


class Ordered(NamedTuple):
    """A list of items for one session; the first `pinned` of them are there because they were pinned."""

    numbers: list[int]
    scores: list[float]
    pinned: int = 0


class Plan:
    """What is asked for, with ids and columns looked up; an InputError where that is not possible.

    `similarity` is None for models without item vectors.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        similarity: Similarity | None,
        k: int | None = None,
        *,
        exclude_seen: bool = False,
        allow: Collection[Click] | None = None,
        deny: Collection[Click] | None = None,
        filter: Mapping[str, Any] | None = None,
        pin: Sequence[Click] | None = None,
        boost: Mapping[str, Mapping[str, float]] | None = None,
        diversify: float | str | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        self.catalogue, self.similarity = catalogue, similarity
        self.k, self.exclude_seen = checked_k(k), exclude_seen
        self.candidates, self.denied = catalogue.candidates(filter, allow, deny)
        self.pinned = list(dict.fromkeys(catalogue.numbers(pin))) if pin else []
        self.groups = self.boost_groups(boost) if boost else [(1.0, self.candidates)]
        self.diversify = self.checked_diversify(diversify) if diversify else None
        self.fields = catalogue.fields(fields)

    def boost_groups(self, boost: Mapping[str, Any]) -> list[tuple[float, Candidates | None]]:
        """The items of each factor."""
        groups = self.catalogue.results.get("boost", boost, self.items_by_factor)
        return [(factor, items.and_also(self.candidates)) for factor, items in groups.items()]

    def items_by_factor(self, boost: Mapping[str, Any]) -> ByFactor:
        if not isinstance(boost, Mapping) or not all(isinstance(values, Mapping) for values in boost.values()):
            raise InputError(f'boost must be like {{"brand": {{"own": 1.2}}}}, not {shown(boost)}')
        factors = np.ones(self.catalogue.items)
        for column, values in boost.items():
            for value, factor in values.items():
                if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.001 <= factor <= 1000:
                    raise InputError(f"a factor of boost must be between 0.001 and 1000, not {shown(factor)}")
                factors[self.catalogue.attributes[column].index.having(value)] *= factor
        different = np.unique(factors)
        if len(different) > MOST_FACTORS:
            raise InputError(f"boost has {len(different)} different factors of items; at most {MOST_FACTORS} work")
        return {float(factor): Candidates(self.catalogue.items, factors == factor) for factor in different}

    def checked_diversify(self, diversify: Any) -> float | str:
        if isinstance(diversify, str):
            self.catalogue.attributes[diversify]  # an error for an unknown column
            return diversify
        if isinstance(diversify, bool) or not isinstance(diversify, int | float) or not 0 <= diversify <= 1:
            raise InputError(f"diversify must be a number from 0 to 1 or the name of a column, not {shown(diversify)}")
        if self.similarity is None:
            raise InputError(
                "the model has no item vectors to diversify by; name a column instead, to get one item of each value"
            )
        return float(diversify)

    @property
    def pool(self) -> int:
        """How many items are found for the list."""
        if self.diversify is None:
            found = self.k
        elif isinstance(self.diversify, str):
            found = POOL_PER_GROUP * self.k
        else:
            found = max(self.k, min(max(POOL_PER_ITEM * self.k, SMALLEST_POOL), LARGEST_POOL))
        return found + len(self.pinned)

    def queries(self, session: EncodedSession) -> list[Query]:
        """A query for each factor, and one for the scores of pinned items."""
        most = min(self.pool, self.catalogue.items)
        queries = [Query(session, most, self.exclude_seen, items, self.denied) for _, items in self.groups]
        if self.pinned:
            items = only(self.catalogue.items, self.pinned).and_also(self.candidates)
            queries.append(Query(session, len(self.pinned), self.exclude_seen, items, self.denied))
        return queries

    def ordered(self, session: EncodedSession, rankings: Sequence[Ranking]) -> Ordered:
        """The list, from the rankings of `queries`."""
        numbers, scores = self.merged(session, rankings)
        pinned: dict[int, float] = dict(zip(*rankings[-1], strict=True)) if self.pinned else {}
        first = [number for number in self.pinned if number in pinned][: self.k]
        if first:
            places = [place for place, number in enumerate(numbers) if number not in pinned]
            numbers, scores = [numbers[place] for place in places], [scores[place] for place in places]
        rest = self.k - len(first)
        if self.diversify is not None:
            places = self.diverse(numbers, scores, rest)
            numbers, scores = [numbers[place] for place in places], [scores[place] for place in places]
        return Ordered(first + numbers[:rest], [pinned[number] for number in first] + scores[:rest], len(first))

    def merged(self, session: EncodedSession, rankings: Sequence[Ranking]) -> Ranking:
        """The items of every factor, the best first."""
        if len(self.groups) == 1 and self.groups[0][0] == 1:
            return rankings[0]
        additive = bool(session.numbers) and self.similarity is not None
        boosted = [
            (score + math.log(factor) if additive else score * factor, number)
            for (factor, _), (numbers, scores) in zip(self.groups, rankings, strict=False)
            for number, score in zip(numbers, scores, strict=True)
        ]
        boosted.sort(key=lambda one: -one[0])
        return [number for _, number in boosted], [score for score, _ in boosted]

    def diverse(self, numbers: Sequence[int], scores: Sequence[float], k: int) -> list[int]:
        """The places of the items to keep, in their order."""
        if isinstance(self.diversify, str):
            groups = self.catalogue.attributes[self.diversify].groups
            return one_of_each_group(numbers, groups, k)
        assert self.diversify is not None
        assert self.similarity is not None  # checked_diversify has checked it
        pool = numbers[:LARGEST_POOL]
        vectors = self.similarity.vectors_of(pool)
        chosen = marginal_relevance(np.array(scores[: len(pool)], np.float32), vectors, self.diversify, k)
        return chosen + list(range(len(pool), min(k, len(numbers))))

    def complete(
        self, session: EncodedSession, found: Ordered, rank: Callable[[list[Query]], list[Ranking]]
    ) -> Ordered:
        """The list with the items of more groups, where it has too few and there are more: they are searched for among
        the items of all other groups."""
        if not isinstance(self.diversify, str) or len(found.numbers) >= self.k:
            return found
        groups, items, pool = self.catalogue.attributes[self.diversify].groups, self.catalogue.items, self.pool
        pinned, rest = found.numbers[: found.pinned], dict(zip(*found[:2], strict=True))
        for number in pinned:
            del rest[number]
        wanted = self.k - len(pinned)
        for _ in range(GROUP_SEARCHES):
            other = ~np.isin(groups, groups[np.array([*rest], np.int64) - 1])
            other[np.array(pinned, np.int64) - 1] = False
            others = Candidates(items, other).and_also(self.candidates)
            if len(rest) >= wanted or not others.count:
                break
            pool = min(POOL_GROWTH * pool, LARGEST_GROUP_POOL, items)
            queries = [
                Query(session, pool, self.exclude_seen, others.and_also(own), self.denied) for _, own in self.groups
            ]
            numbers, scores = self.merged(session, rank(queries))
            places = one_of_each_group(numbers, groups, wanted - len(rest))
            if not places:
                break
            rest |= {numbers[place]: scores[place] for place in places}
        in_order = sorted(rest, key=lambda number: -rest[number])
        return Ordered(
            pinned + in_order, found.scores[: len(pinned)] + [rest[number] for number in in_order], len(pinned)
        )


def checked_k(k: int | None) -> int:
    if k is None:
        return DEFAULT_K
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"k={k!r}: it must be a whole number, 1 or more")
    return k
