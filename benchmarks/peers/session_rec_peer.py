"""A nearest-neighbour model of session-rec, which gets new sessions click by click."""

import sys
from itertools import count

import numpy as np
import pandas as pd
from exchange import Items, Scores, read_job

job = read_job()
sys.path.insert(0, job.peer_folder)

from algorithms.knn.stan import STAN  # noqa: E402
from algorithms.knn.vsknn import VMContextKNN  # noqa: E402

# The sessions follow each other evenly.
latest = job.settings.pop("days", 1) * 24 * 3600
lengths = [len(session) for session in job.train]
clicks = pd.DataFrame(
    {
        "SessionId": np.repeat(np.arange(len(lengths)), lengths),
        "ItemId": np.concatenate(job.train),
        "Time": np.repeat(np.linspace(0, latest, len(lengths)), lengths),
    }
)
model = {"vsknn": VMContextKNN, "stan": STAN}[job.model](**job.settings)
with job.training():
    model.fit(clicks)
items = np.arange(1, job.items + 1)
new_numbers = count(len(lengths))


def predict(session: Items) -> pd.Series:
    """The scores of all items after a session, which gets a new number."""
    number = next(new_numbers)
    *before, last = session.tolist()
    for item in before:
        model.predict_next(number, item, items, timestamp=latest, skip=True)
    return model.predict_next(number, last, items, timestamp=latest)


def scores(sessions: list[Items]) -> Scores:
    return np.stack([predict(session).to_numpy() for session in sessions])


job.finish(scores, lambda session: predict(session).nlargest(20))
