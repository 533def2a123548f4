"""What a request asks for besides its session: how many items, which of them, and in what order.

A `Plan` is checked once and then used for one session or for many. It turns a session into queries
for the ranker, and the rankings of these queries into one list: filters and rules say which items
may be recommended (catalogue.py), then come boosts, diversity, pinned items and new items.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np

from posrec.data.item_times import read_moments
from posrec.errors import InputError
from posrec.recommend.catalogue import EVERY_ITEM, Candidates, Catalogue, mask_of
from posrec.recommend.explore import (
    Explorable,
    checked_days,
    in_turn,
    pool_size,
    turn_of,
)
from posrec.recommend.filters import FilterColumns, is_number, shown
from posrec.recommend.rank.best_items import Columns
from posrec.recommend.rank.ranker import Query, Ranking
from posrec.recommend.rank.similarity import Similarity, marginal_relevance
from posrec.recommend.session import Click, EncodedSession, as_ids

DEFAULT_K = 20
# A diversified list is chosen from a pool, the first items of the ranking.
POOL_PER_ITEM = 5
SMALLEST_POOL = 100
LARGEST_POOL = 1000  # items of a longer list that come after them keep their order
# So is a list with a limit on each value of a column. While the pool has too few values, another
# search finds POOL_GROWTH times as many items.
POOL_PER_PLACE = 8
LARGEST_GROUP_POOL = 10_000
GROUP_SEARCHES = 8
POOL_GROWTH = 8
MOST_EXPLORED = 20
MOST_SHARE_EXPLORED = 0.5

Exclude = Literal["current", "seen"]
Rank = Callable[[list[Query]], list[Ranking]]


class SimilarRules(TypedDict, total=False):
    """The options of `Recommender.similar_items`."""

    allow: Collection[Click] | None
    deny: Collection[Click] | None
    filter: Mapping[str, Any] | None
    fields: Sequence[str] | None
    now: Any


class AnswerRules(SimilarRules, total=False):
    """The options of `Recommender.recommend`, which describes them."""

    exclude: Exclude | None
    exclude_seen: bool
    pin: Sequence[Click] | None
    boost: Mapping[str, Mapping[str, float]] | None
    diversify: float | str | Mapping[str, Any] | None
    explore: float | None
    explore_days: float | None


class Ordered(NamedTuple):
    """The first `pinned` items are pinned, `explored` has the new ones."""

    items: Ranking
    pinned: int = 0
    explored: frozenset[int] = frozenset()


class GroupLimit(NamedTuple):
    """At most `most` items with the same value of a column."""

    groups: Columns  # [n] the group of each item
    most: int


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def checked_k(k: int | None) -> int:
    if k is None:
        return DEFAULT_K
    if not is_count(k):
        raise InputError(f"k={k!r}: it must be a whole number, 1 or more")
    return k


def checked_exclude(exclude: Any) -> Exclude | None:
    if exclude not in (None, "current", "seen"):
        raise InputError(f"exclude must be one of current, seen, not {shown(exclude)}")
    return exclude  # type: ignore[no-any-return]


def checked_explore(explore: Any) -> float:
    if explore is None:
        return 0.0
    if not is_number(explore) or not 0 <= explore <= MOST_SHARE_EXPLORED:
        raise InputError(
            f"explore must be a number from 0 to {MOST_SHARE_EXPLORED}, not {shown(explore)}"
        )
    return float(explore)


def group_limit(diversify: Any, attributes: FilterColumns) -> GroupLimit | None:
    """Of a column, or of a column and a number; None for anything else."""
    if isinstance(diversify, str):
        return GroupLimit(attributes[diversify].groups, 1)
    if not isinstance(diversify, Mapping) or diversify.keys() != {"column", "most"}:
        return None
    if not is_count(diversify["most"]):
        return None
    return GroupLimit(attributes[str(diversify["column"])].groups, diversify["most"])


def checked_diversity(diversify: Any, similarity: Similarity | None) -> float:
    if not is_number(diversify) or not 0 <= diversify <= 1:
        raise InputError(
            "diversify must be a number from 0 to 1, a column, "
            f'or like {{"column": "brand", "most": 2}}, not {shown(diversify)}'
        )
    if diversify and similarity is None:
        raise InputError(
            "the model has no item vectors to diversify by; name a column instead, "
            "to get one item of each value"
        )
    return float(diversify)


def best_first(ranking: Ranking) -> Ranking:
    return sorted(ranking, key=lambda item: -item[1])


def clock() -> float:
    """Milliseconds since 1970, in whole seconds."""
    return 1000.0 * int(time.time())


def moment_of(now: Any) -> float:
    moment = math.nan if now is None else float(read_moments("now", [now])[0])
    return clock() if math.isnan(moment) else moment


def columns_of(ranking: Ranking) -> Columns:
    return np.array([number - 1 for number, _ in ranking], np.int64)


class Plan:
    """What is asked for, with ids and columns looked up; an InputError where that is not possible.

    `similarity` is None for models without item vectors, `explorable` for those that know items by
    their clicks alone.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        similarity: Similarity | None,
        k: int | None = None,
        *,
        explorable: Explorable | None = None,
        **rules: Unpack[AnswerRules],
    ) -> None:
        options = AnswerRules.__annotations__.keys()
        if unknown := sorted(rules.keys() - options):
            names = ", ".join(["k", *sorted(options)])
            raise TypeError(f"recommend() has no option {unknown[0]!r}; it has {names}")
        now = rules.get("now")
        self.now = moment_of(now)
        catalogue = catalogue.at(self.now, keep=now is None)
        self.catalogue = catalogue
        self.similarity = similarity
        self.k = checked_k(k)
        self.exclude: Exclude | None = "seen"
        if not rules.get("exclude_seen"):
            self.exclude = checked_exclude(rules.get("exclude"))
        self.candidates, self.denied = catalogue.candidates(
            rules.get("filter"), rules.get("allow"), rules.get("deny")
        )
        self.pinned = list(dict.fromkeys(catalogue.numbers(rules.get("pin") or [])))
        boost = rules.get("boost")
        by_factor = catalogue.boosts.get(boost) if boost else {1.0: EVERY_ITEM}
        self.by_factor = {
            factor: items & self.candidates for factor, items in by_factor.items()
        }
        diversify = rules.get("diversify") or 0.0
        self.limit = group_limit(diversify, catalogue.attributes)
        self.diversity = 0.0
        if self.limit is None:
            self.diversity = checked_diversity(diversify, similarity)
        self.explore = checked_explore(rules.get("explore"))
        days = checked_days(rules.get("explore_days"))
        self.new_items: Candidates | None = None
        if explorable is not None and self.explore:
            self.new_items = explorable.at(catalogue, self.now, days) & self.candidates
        self.fields = catalogue.fields(rules.get("fields"))

    @property
    def pool(self) -> int:
        """How many items are searched for."""
        pool = self.k
        if self.limit is not None:
            pool = POOL_PER_PLACE * self.k
        elif self.diversity:
            pool = min(max(POOL_PER_ITEM * self.k, SMALLEST_POOL), LARGEST_POOL)
        return max(pool, self.k) + len(self.pinned)

    def queries(self, session: EncodedSession) -> list[Query]:
        """A query for each factor, one for the scores of pinned items, and one for new items."""
        most = min(self.pool, self.catalogue.items)
        queries = self.queries_by_factor(session, most, EVERY_ITEM)
        if self.pinned:
            pinned = Candidates(mask_of(self.catalogue.items, self.pinned))
            items = pinned & self.candidates
            queries.append(self.query(session, len(self.pinned), items))
        if self.new_items is not None:
            queries.append(self.new_query(session, self.new_items))
        return queries

    def queries_by_factor(
        self, session: EncodedSession, k: int, among: Candidates
    ) -> list[Query]:
        """A factor keeps the order of its items, so a query for each finds its best ones."""
        return [
            self.query(session, k, items & among) for items in self.by_factor.values()
        ]

    def query(self, session: EncodedSession, k: int, items: Candidates) -> Query:
        left_out = self.denied
        if self.exclude == "seen":
            left_out = left_out.union(session.numbers)
        elif self.exclude == "current" and session.current is not None:
            left_out = left_out.union([session.current])
        return Query(session, k, items, left_out)

    def new_query(self, session: EncodedSession, new_items: Candidates) -> Query:
        """Ranks those that are near the session. Without a known click they have no order."""
        if session.numbers:
            return self.query(session, pool_size(new_items), new_items)
        numbers = in_turn(new_items.numbers, turn_of(session, self.now))
        items = Candidates(mask_of(self.catalogue.items, numbers))
        return self.query(session, len(numbers), items)

    def ordered(
        self, session: EncodedSession, rankings: Sequence[Ranking], rank: Rank
    ) -> Ordered:
        """The list, from the rankings of `queries`; `rank` ranks more if they are not enough."""
        rankings = list(rankings)
        new_ranking = None if self.new_items is None else rankings.pop()
        pinned_scores = dict(rankings.pop()) if self.pinned else {}
        pinned = [
            (number, pinned_scores[number])
            for number in self.pinned
            if number in pinned_scores
        ][: self.k]
        ranking = [
            (number, score)
            for number, score in self.merged(session, rankings)
            if number not in pinned_scores
        ]
        if self.limit is not None:
            ranking = self.limited(session, ranking, pinned, self.limit, rank)
        elif self.diversity:
            ranking = self.diverse(ranking, self.k - len(pinned))
        items = [*pinned, *ranking][: self.k]
        if new_ranking is None:
            return Ordered(items, len(pinned))
        return self.with_explored(session, items, len(pinned), new_ranking)

    def merged(self, session: EncodedSession, rankings: Sequence[Ranking]) -> Ranking:
        """The items of every factor, the best first.

        Scores of trained models are logits or log probabilities, so the logarithm of a factor is
        added; other scores are multiplied by it.
        """
        if self.by_factor.keys() == {1.0}:
            return rankings[0]
        is_logarithm = bool(session.numbers) and self.similarity is not None
        boosted = []
        for factor, ranking in zip(self.by_factor, rankings, strict=True):
            for number, score in ranking:
                score = score + math.log(factor) if is_logarithm else score * factor
                boosted.append((number, score))
        return best_first(boosted)

    def diverse(self, ranking: Ranking, k: int) -> Ranking:
        """The k items to keep, in their order, by marginal relevance."""
        assert self.similarity is not None  # checked_diversity has checked it
        pool = ranking[:LARGEST_POOL]
        vectors = self.similarity.vectors.take(columns_of(pool), 0)
        scores = np.array([score for _, score in pool], np.float32)
        chosen = marginal_relevance(scores, vectors, self.diversity, k)
        return [pool[position] for position in chosen] + ranking[len(pool) : k]

    def limited(
        self,
        session: EncodedSession,
        ranking: Ranking,
        pinned: Ranking,
        limit: GroupLimit,
        rank: Rank,
    ) -> Ranking:
        """The first items within the limit, for which pinned items do not count. If they are too
        few, the items of groups that are not full are searched."""
        k = self.k - len(pinned)
        pool = self.pool
        chosen = self.within_limit(ranking, k, [])
        for _ in range(GROUP_SEARCHES):
            columns = columns_of(chosen)
            groups, counts = np.unique(limit.groups[columns], return_counts=True)
            is_open = ~np.isin(limit.groups, groups[counts >= limit.most])
            is_open[columns] = False
            is_open[columns_of(pinned)] = False
            if len(chosen) >= k or not is_open.any():
                break
            pool = min(POOL_GROWTH * pool, LARGEST_GROUP_POOL, self.catalogue.items)
            queries = self.queries_by_factor(session, pool, Candidates(is_open))
            ranking = self.merged(session, rank(queries))
            more = self.within_limit(ranking, k - len(chosen), chosen)
            if not more:
                break
            chosen += more
        return best_first(chosen)

    def with_explored(
        self, session: EncodedSession, items: Ranking, pinned: int, new_ranking: Ranking
    ) -> Ordered:
        """The list with new items in some places, but not in the first or a pinned one."""
        turn = turn_of(session, self.now)
        draw = Random(turn)
        share = int(self.explore * self.k + draw.random())
        count = min(share, MOST_EXPLORED, self.k - max(pinned, 1))
        in_list = {number for number, _ in items}
        scores = dict(new_ranking)
        numbers = sorted(scores)
        if not session.numbers:
            assert self.new_items is not None
            numbers = self.new_items.numbers
        drawn = [
            (number, scores[number])
            for number in in_turn(numbers, turn)
            if number in scores and number not in in_list
        ]
        chosen = self.within_limit(drawn, count, [])
        places_left = self.k - pinned - len(chosen)
        rest = self.within_limit(items[pinned:], places_left, chosen)
        answer = items[:pinned] + rest
        first = max(pinned, min(1, len(answer)))
        open_positions = range(first, len(answer) + len(chosen))
        positions = draw.sample(open_positions, len(chosen))
        for position, item in zip(sorted(positions), chosen, strict=True):
            answer.insert(position, item)
        return Ordered(answer, pinned, frozenset(number for number, _ in chosen))

    def within_limit(self, ranking: Ranking, k: int, before: Ranking) -> Ranking:
        """The first k items; with a limit, as many of each group as it allows besides `before`."""
        if self.limit is None:
            return ranking[:k]
        groups, most = self.limit
        counts = Counter(groups[columns_of(before)].tolist())
        chosen: Ranking = []
        for number, score in ranking:
            if len(chosen) >= k:
                break
            group = int(groups[number - 1])
            if counts[group] < most:
                counts[group] += 1
                chosen.append((number, score))
        return chosen


class RankPlan(Plan):
    """All of the given items that are known, whatever the rules; `unknown` has the other ids."""

    def __init__(self, catalogue: Catalogue, ids: Sequence[Click]) -> None:
        listed = {id: catalogue.number(id) for id in as_ids(ids, "candidates")}
        self.unknown = tuple(id for id, number in listed.items() if number is None)
        numbers = [number for number in listed.values() if number is not None]
        super().__init__(catalogue, None, max(1, len(numbers)))
        self.by_factor = {1.0: Candidates(mask_of(catalogue.items, numbers))}
