"""Whether a run that was opened can be used, and would be quicker with an export."""

import math

import numpy as np

from posrec.device import computes_on_cpu
from posrec.errors import RunFailed
from posrec.recommend.rank.encoder import drawn_sessions
from posrec.recommend.rank.ranker import Query, Ranking
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession


def missing_export(recommender: Recommender) -> str | None:
    """A sentence about a run that torch serves although it could be exported."""
    run = recommender.run
    if run.has_export or not computes_on_cpu(recommender.device_name):
        return None
    from posrec.recommend.export.writing import can_be_exported

    if not can_be_exported(run):
        return None
    return (
        f"{run.path} has no export, so torch computes, more slowly; "
        f"posrec export {run.path} adds it"
    )


def try_out(recommender: Recommender) -> None:
    """Rank for sessions of many lengths, of often clicked items, of any items, and of none;
    RunFailed if a score is not finite or items repeat."""
    draw = np.random.default_rng(0)
    longest = recommender.ranker.encoder.max_length
    k = min(20, recommender.items)
    lengths = [1, 2, 3, 5, longest, longest + 3]
    clicks = recommender.popularity
    sessions = drawn_sessions(clicks, lengths, draw)
    sessions += drawn_sessions(np.zeros_like(clicks), lengths, draw)
    sessions.append([])
    queries = [Query(EncodedSession(session), k) for session in sessions]
    for query, ranking in zip(queries, recommender.ranker.rank(queries), strict=True):
        if fault := fault_of(ranking, recommender.items):
            about = "a session without a known item"
            if numbers := query.session.numbers[-3:]:
                ids = [recommender.vocabulary.item(number) for number in numbers]
                about = f"a session that ends with {ids}"
            raise RunFailed(
                f"the run can't be used: recommending for {about} gave {fault}"
            )


def fault_of(ranking: Ranking, items: int) -> str | None:
    if not all(math.isfinite(score) for _, score in ranking):
        return "a score that is not finite"
    if len({number for number, _ in ranking if 1 <= number <= items}) != len(ranking):
        return "items that are not distinct, or do not exist"
    return None if ranking else "no items"
