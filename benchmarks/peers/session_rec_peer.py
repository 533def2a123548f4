"""A nearest-neighbour model of session-rec: a table of clicks, and a session that is told click by
click."""

import sys
from itertools import count

import numpy as np
import pandas as pd
from exchange import read_job

job = read_job()
sys.path.insert(0, job.peer_folder)

from algorithms.knn.stan import STAN  # noqa: E402
from algorithms.knn.vsknn import VMContextKNN  # noqa: E402

DAYS = (
    5 * 24 * 3600
)  # seconds from the first session to the last; STAN's weight of old sessions falls in five days
lengths = [len(session) for session in job.train]
clicks = pd.DataFrame(
    {
        "SessionId": np.repeat(np.arange(len(lengths)), lengths),
        "ItemId": np.concatenate(job.train),
        "Time": np.repeat(np.linspace(0, DAYS, len(lengths)), lengths),
    }
)
model = {"vsknn": VMContextKNN, "stan": STAN}[job.model](**job.settings)
job.begin()  # measures
model.fit(clicks)
job.is_best()  # measures
items = np.arange(1, job.items + 1)
number = count(len(lengths))


def predict(session):
    """The scores of all items after a session that has a number of its own."""
    this, (*before, last) = next(number), session.tolist()
    for item in before:
        model.predict_next(this, item, items, timestamp=DAYS, skip=True)
    return model.predict_next(this, last, items, timestamp=DAYS)


def scores(sessions):
    return np.stack([predict(session).to_numpy() for session in sessions])


job.finish(scores, lambda session: predict(session).nlargest(20))
