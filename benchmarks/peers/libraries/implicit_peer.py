"""A model of implicit: sessions are rows of a matrix, new ones when they are answered."""

import numpy as np
from implicit.als import AlternatingLeastSquares
from implicit.bpr import BayesianPersonalizedRanking
from implicit.nearest_neighbours import CosineRecommender
from scipy.sparse import csr_matrix

from benchmarks.peers.libraries.exchange import Items, Scores, dense, read_job

RANKED = 100  # items of a list; the others have ranks past every cutoff
job = read_job()
models = {
    "itemknn": CosineRecommender,
    "bprmf": BayesianPersonalizedRanking,
    "als": AlternatingLeastSquares,
}
# Otherwise a session counts an item as often as it was clicked.
each_item_once = job.settings.pop("once", False)
model = models[job.model](num_threads=job.threads, **job.settings)


def matrix(sessions: list[Items]) -> csr_matrix:
    rows = np.repeat(np.arange(len(sessions)), [len(session) for session in sessions])
    columns = np.concatenate(sessions) - 1
    is_trained = columns < job.items
    cells = (rows[is_trained], columns[is_trained])
    ones = np.ones(is_trained.sum(), dtype=np.float32)
    return csr_matrix((ones, cells), (len(sessions), job.items))


with job.training():
    clicks = matrix(job.train)
    model.fit(clicks.sign() if each_item_once else clicks, show_progress=False)


def recommend(sessions: list[Items], count: int) -> tuple[Items, Scores]:
    items, values = model.recommend(
        np.arange(len(sessions)),
        matrix(sessions),
        N=count,
        filter_already_liked_items=False,
        recalculate_user=True,
    )
    return items, values


def scores(sessions: list[Items]) -> Scores:
    if job.model == "bprmf":
        # It has no vectors of new users: the mean of the items' vectors, by hand.
        by_hand: Scores = matrix(sessions) @ model.item_factors @ model.item_factors.T
        return by_hand
    items, values = recommend(sessions, min(RANKED, job.items))
    return dense(items, values, job.items)


job.finish(scores, lambda session: recommend([session], 20))
