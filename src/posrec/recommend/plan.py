"""What a request asks for beside its session: how many items, which of them, and in what order.

A `Plan` is checked once and then used for one session or for many. It turns a session into queries
for the ranker, and the rankings of these queries into one list: filters and rules say which items
may be recommended (catalogue.py), then come boosts, diversity, pinned items and places for new
ones."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

import numpy as np

from posrec.errors import InputError
from posrec.recommend.catalogue import EVERY_ITEM, Candidates, Catalogue, only
from posrec.recommend.filters import is_number, shown
from posrec.recommend.rank.best_items import Columns
from posrec.recommend.rank.ranker import Query, Ranking
from posrec.recommend.rank.similarity import (
    Similarity,
    marginal_relevance,
    some_of_each_group,
)
from posrec.recommend.session import Click, EncodedSession

DEFAULT_K = 20
POOL_PER_ITEM = 5  # items from which each item of a diversified list is chosen
SMALLEST_POOL = 100
LARGEST_POOL = 1000  # items of a longer list that come after them keep their order
POOL_PER_PLACE = (
    8  # items found for each place of a list with a limit on each value of a column
)
LARGEST_GROUP_POOL = 10_000
GROUP_SEARCHES = 8  # more searches where too few values were found; each has POOL_GROWTH times as many items
POOL_GROWTH = 8
FEW_CLICKS = 5  # in training: an item with fewer is new; `posrec prepare` leaves their clicks out by default
EXPLORE_POOL = 100  # new items from which those of a list are drawn
MOST_EXPLORED = 20  # of a list
MOST_SHARE_EXPLORED = 0.5

Exclude = Literal["current", "seen"]


class SimilarRules(TypedDict, total=False):
    """The options of `Recommender.similar_items`."""

    allow: Collection[Click] | None
    deny: Collection[Click] | None
    filter: Mapping[str, Any] | None
    fields: Sequence[str] | None


class AnswerRules(SimilarRules, total=False):
    """The options of `Recommender.recommend`, which describes them."""

    exclude: Exclude | None
    exclude_seen: bool
    pin: Sequence[Click] | None
    boost: Mapping[str, Mapping[str, float]] | None
    diversify: float | str | Mapping[str, Any] | None
    explore: float | None


class Ordered(NamedTuple):
    """A list for one session; the first `pinned` items were pinned, those of `explored` are new."""

    items: Ranking
    pinned: int = 0
    explored: frozenset[int] = frozenset()


class GroupLimit(NamedTuple):
    """A list has at most `most` items of each of the groups [n] of items, which have the same value
    of a column."""

    groups: Columns
    most: int


class Plan:
    """What is asked for, with ids and columns looked up; an InputError where that is not possible.

    `similarity` is None for models without item vectors, `new_items` for runs without new items.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        similarity: Similarity | None,
        k: int | None = None,
        *,
        new_items: Candidates | None = None,
        **rules: Unpack[AnswerRules],
    ) -> None:
        if unknown := sorted(rules.keys() - AnswerRules.__annotations__.keys()):
            options = ", ".join(["k", *sorted(AnswerRules.__annotations__)])
            raise TypeError(
                f"recommend() has no option {unknown[0]!r}; it has {options}"
            )
        self.catalogue = catalogue
        self.similarity = similarity
        self.k = checked_k(k)
        self.exclude = (
            "seen"
            if rules.get("exclude_seen")
            else checked_exclude(rules.get("exclude"))
        )
        self.candidates, self.denied = catalogue.candidates(
            rules.get("filter"), rules.get("allow"), rules.get("deny")
        )
        self.pinned = list(dict.fromkeys(catalogue.numbers(rules.get("pin") or [])))
        by_factor = (
            catalogue.boosts.get(boost)
            if (boost := rules.get("boost"))
            else {1.0: EVERY_ITEM}
        )
        self.groups = [
            (factor, items.and_also(self.candidates))
            for factor, items in by_factor.items()
        ]
        self.diversify = self.checked_diversify(rules.get("diversify"))
        self.explore = checked_explore(rules.get("explore"))
        self.new_items = (
            new_items.and_also(self.candidates)
            if new_items is not None and self.explore
            else None
        )
        self.fields = catalogue.fields(rules.get("fields"))

    def checked_diversify(self, diversify: Any) -> float | GroupLimit:
        if not diversify:
            return 0.0
        limit: Any = (
            {"column": diversify, "most": 1}
            if isinstance(diversify, str)
            else diversify
        )
        if (
            isinstance(limit, Mapping)
            and limit.keys() == {"column", "most"}
            and is_count(limit["most"])
        ):
            return GroupLimit(
                self.catalogue.attributes[str(limit["column"])].groups, limit["most"]
            )
        if not is_number(diversify) or not 0 <= diversify <= 1:
            raise InputError(
                f'diversify must be a number from 0 to 1, a column, or like {{"column": "brand", "most": 2}}, '
                f"not {shown(diversify)}"
            )
        if self.similarity is None:
            raise InputError(
                "the model has no item vectors to diversify by; name a column instead, to get one item of each value"
            )
        return float(diversify)

    @property
    def pool(self) -> int:
        """How many items are found for the list."""
        found = self.k
        if isinstance(self.diversify, GroupLimit):
            found *= POOL_PER_PLACE
        elif self.diversify:
            found = max(
                self.k, min(max(POOL_PER_ITEM * self.k, SMALLEST_POOL), LARGEST_POOL)
            )
        return found + len(self.pinned)

    def queries(self, session: EncodedSession) -> list[Query]:
        """A query for each factor, one for the scores of pinned items, and one for new items."""
        most = min(self.pool, self.catalogue.items)
        queries = [self.query(session, most, items) for _, items in self.groups]
        if self.pinned:
            items = only(self.catalogue.items, self.pinned).and_also(self.candidates)
            queries.append(self.query(session, len(self.pinned), items))
        if self.new_items is not None:
            queries.append(
                self.query(
                    session, EXPLORE_POOL, self.explorable(session, self.new_items)
                )
            )
        return queries

    def query(self, session: EncodedSession, k: int, items: Candidates) -> Query:
        left_out = self.denied
        if self.exclude == "seen":
            left_out = left_out.union(session.numbers)
        elif self.exclude == "current" and session.current is not None:
            left_out = left_out.union([session.current])
        return Query(session, k, items, left_out)

    def explorable(self, session: EncodedSession, new_items: Candidates) -> Candidates:
        """The new items that are ranked. Without a known click they have no order, so some are
        drawn."""
        assert new_items.mask is not None
        columns = np.flatnonzero(new_items.mask)
        if session.numbers or len(columns) <= EXPLORE_POOL:
            return new_items
        drawn = columns[Random().sample(range(len(columns)), EXPLORE_POOL)]
        return only(self.catalogue.items, (drawn + 1).tolist())

    def ordered(
        self,
        session: EncodedSession,
        rankings: Sequence[Ranking],
        rank: Callable[[list[Query]], list[Ranking]],
    ) -> Ordered:
        """The list, from the rankings of `queries`; `rank` is asked for more where they are not
        enough."""
        ranking = self.merged(session, rankings)
        others = iter(rankings[len(self.groups) :])
        scores = dict(next(others)) if self.pinned else {}
        pinned = [
            (number, scores[number]) for number in self.pinned if number in scores
        ][: self.k]
        rest = [(number, score) for number, score in ranking if number not in scores]
        if isinstance(self.diversify, GroupLimit):
            rest = self.limited(session, rest, pinned, self.diversify, rank)
        elif self.diversify:
            rest = self.diverse(rest, self.k - len(pinned))
        answer = Ordered([*pinned, *rest][: self.k], len(pinned))
        return (
            answer
            if self.new_items is None
            else self.with_explored(session, answer, next(others))
        )

    def merged(self, session: EncodedSession, rankings: Sequence[Ranking]) -> Ranking:
        """The items of every factor f, the best first.

        Scores of trained models are logits or log probabilities, so log f is added; others are
        multiplied. A factor keeps the order of its items, so a query of its own finds its best.
        """
        if len(self.groups) == 1 and self.groups[0][0] == 1:
            return rankings[0]
        additive = bool(session.numbers) and self.similarity is not None
        boosted = [
            (number, score + math.log(factor) if additive else score * factor)
            for (factor, _), ranking in zip(self.groups, rankings, strict=False)
            for number, score in ranking
        ]
        return sorted(boosted, key=lambda item: -item[1])

    def diverse(self, ranking: Ranking, k: int) -> Ranking:
        """The k items to keep, in their order, by marginal relevance."""
        assert self.similarity is not None  # checked_diversify has checked it
        assert isinstance(self.diversify, float)
        pool = ranking[:LARGEST_POOL]
        vectors = self.similarity.vectors_of([number for number, _ in pool])
        scores = np.array([score for _, score in pool], np.float32)
        chosen = marginal_relevance(scores, vectors, self.diversify, k)
        return [pool[place] for place in chosen] + ranking[len(pool) : k]

    def limited(
        self,
        session: EncodedSession,
        ranking: Ranking,
        pinned: Ranking,
        limit: GroupLimit,
        rank: Callable[[list[Query]], list[Ranking]],
    ) -> Ranking:
        """The first items within the limit, to which pinned items do not count; where they are too
        few, more are searched for among the items of groups that are not full."""
        wanted = self.k - len(pinned)
        pool = self.pool
        chosen = self.within_limit(ranking, wanted)
        for _ in range(GROUP_SEARCHES):
            taken = np.array([number - 1 for number, _ in chosen], np.int64)
            values, counts = np.unique(limit.groups[taken], return_counts=True)
            is_open = ~np.isin(limit.groups, values[counts >= limit.most])
            is_open[taken] = is_open[
                np.array([number - 1 for number, _ in pinned], np.int64)
            ] = False
            if len(chosen) >= wanted or not is_open.any():
                break
            pool = min(POOL_GROWTH * pool, LARGEST_GROUP_POOL, self.catalogue.items)
            queries = [
                self.query(session, pool, items.and_also(Candidates(is_open)))
                for _, items in self.groups
            ]
            more = self.within_limit(
                self.merged(session, rank(queries)), wanted - len(chosen), chosen
            )
            if not more:
                break
            chosen += more
        return sorted(chosen, key=lambda item: -item[1])

    def with_explored(
        self, session: EncodedSession, answer: Ordered, new: Ranking
    ) -> Ordered:
        """The list with some places given to new items: never the first, nor those of pinned items.

        A new item is drawn in proportion to 1 / rank, by the session alone, so that the same
        session gets the same list. Without a known click every draw is new, and all are alike.
        """
        draw = Random(str(session.numbers) if session.numbers else None)
        wanted = min(
            int(self.explore * self.k + draw.random()),
            MOST_EXPLORED,
            self.k - max(answer.pinned, 1),
        )
        in_list = {number for number, _ in answer.items}
        # Efraimidis and Spirakis: the highest u^(1 / weight) are a draw by weights, here 1 / rank,
        # or 1 for all.
        keys = {
            (number, score): draw.random() ** (rank if session.numbers else 1)
            for rank, (number, score) in enumerate(new, start=1)
            if number not in in_list
        }
        chosen = self.within_limit(sorted(keys, key=lambda item: -keys[item]), wanted)
        pinned = answer.items[: answer.pinned]
        rest = answer.items[answer.pinned :]
        items = pinned + self.within_limit(
            rest, self.k - len(pinned) - len(chosen), chosen
        )
        first = max(len(pinned), min(1, len(items)))
        places = draw.sample(range(first, len(items) + len(chosen)), len(chosen))
        for place, item in zip(sorted(places), chosen, strict=True):
            items.insert(place, item)
        return Ordered(items, answer.pinned, frozenset(number for number, _ in chosen))

    def within_limit(
        self, ranking: Ranking, k: int, before: Ranking | None = None
    ) -> Ranking:
        """The first k items, of each group only as many as a limit allows beside those of `before`."""
        if not isinstance(self.diversify, GroupLimit):
            return ranking[:k]
        return some_of_each_group(ranking, *self.diversify, k, before or [])


def checked_k(k: int | None) -> int:
    if k is None:
        return DEFAULT_K
    if not is_count(k):
        raise InputError(f"k={k!r}: it must be a whole number, 1 or more")
    return k


def checked_exclude(exclude: Any) -> Exclude | None:
    if exclude is not None and exclude not in get_args(Exclude):
        raise InputError(
            f"exclude must be one of {', '.join(get_args(Exclude))}, not {shown(exclude)}"
        )
    return exclude  # type: ignore[no-any-return]


def checked_explore(explore: Any) -> float:
    if explore is None:
        return 0.0
    if not is_number(explore) or not 0 <= explore <= MOST_SHARE_EXPLORED:
        raise InputError(
            f"explore must be a number from 0 to {MOST_SHARE_EXPLORED}, not {shown(explore)}"
        )
    return float(explore)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
