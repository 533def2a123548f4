"""A model of implicit: sessions as rows of a matrix, and rows of new sessions at the time of the
answer."""

import numpy as np
from exchange import dense, read_job
from implicit.als import AlternatingLeastSquares
from implicit.bpr import BayesianPersonalizedRanking
from implicit.nearest_neighbours import CosineRecommender
from scipy.sparse import csr_matrix

job = read_job()
models = {
    "itemknn": CosineRecommender,
    "bprmf": BayesianPersonalizedRanking,
    "als": AlternatingLeastSquares,
}
model = models[job.model](num_threads=job.threads, **job.settings)


def matrix(sessions):
    rows = np.repeat(np.arange(len(sessions)), [len(session) for session in sessions])
    columns = np.concatenate(sessions) - 1
    known = columns < job.items
    shape = (len(sessions), job.items)
    return csr_matrix(
        (np.ones(known.sum(), dtype=np.float32), (rows[known], columns[known])), shape
    )


job.begin()  # measures
model.fit(matrix(job.train), show_progress=False)
job.is_best()  # measures


def recommend(sessions, count):
    return model.recommend(
        np.arange(len(sessions)),
        matrix(sessions),
        N=count,
        filter_already_liked_items=False,
        recalculate_user=True,
    )


def scores(sessions):
    if (
        job.model == "bprmf"
    ):  # it has no vectors of new users: the mean of the items' vectors, by hand
        return matrix(sessions) @ model.item_factors @ model.item_factors.T
    return dense(*recommend(sessions, job.items), job.items)


job.epochs_were(getattr(model, "iterations", 0))  # measures
job.finish(
    scores,
    lambda session: recommend([session], 20),
    epochs_by_default=len(job.epoch_seconds),
)
