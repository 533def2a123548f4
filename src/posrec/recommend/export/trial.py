"""A trial of a recommender before it serves: it recommends for sessions of the run's own items.

A run can be complete and still be useless: weights that are not numbers, a setting that makes every score infinite. So
a few sessions are ranked, the way that requests are, and the answers are checked.
"""

import math

import numpy as np

from posrec.errors import RunFailed
from posrec.recommend.rank.ranker import Query, Ranking
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession

SESSIONS = 16
K = 20


def try_out(recommender: Recommender) -> None:
    """Recommend for sessions of many lengths; raises RunFailed if a score is not finite or the items are not distinct.

    Half of the sessions are of items drawn by their training clicks, half of any items, and the last has no known item.
    """
    sessions = drawn_sessions(recommender)
    k = min(K, recommender.items)
    queries = [Query(EncodedSession(session), k) for session in sessions]
    for query, ranking in zip(queries, recommender.ranker.rank(queries), strict=True):
        if fault := fault_of(ranking, recommender.items):
            shown = [recommender.vocabulary.item(number) for number in query.session.numbers[-3:]]
            about = f"a session that ends with {shown}" if shown else "a session without a known item"
            raise RunFailed(f"the run can't be used: recommending for {about} gave {fault}")


def drawn_sessions(recommender: Recommender) -> list[list[int]]:
    """Sessions as item numbers; the same for the same run."""
    draw, items = np.random.default_rng(0), recommender.items
    clicks = np.ones(items)
    if recommender.popularity is not None:
        clicks += recommender.popularity
    longest = recommender.ranker.max_length
    lengths = [1, 2, 3, 5, longest, longest + 3]
    sessions = []
    for number in range(SESSIONS):
        likely = clicks / clicks.sum() if number % 2 else None
        sessions.append((draw.choice(items, lengths[number % len(lengths)], p=likely) + 1).tolist())
    return sessions if recommender.popularity is None else [*sessions, []]


def fault_of(ranking: Ranking, items: int) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    numbers, scores = ranking
    if not all(map(math.isfinite, scores)):
        return "a score that is not finite"
    if len(set(numbers)) != len(numbers) or not all(1 <= number <= items for number in numbers):
        return "items that are not distinct, or do not exist"
    return None if numbers else "no items"
