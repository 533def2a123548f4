"""A nearest-neighbour model of session-rec, which gets new sessions click by click."""

import sys

import numpy as np
import pandas as pd

from benchmarks.peers.libraries.exchange import Items, Scores, read_job

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


class Sessions:
    """The sessions that the model is asked about; it finds neighbours as their clicks arrive."""

    number = len(lengths)
    clicks: Items = items[:0]

    def predict(self, session: Items) -> pd.Series:
        """The scores of all items after a session, which may go on with the one before it."""
        known = len(self.clicks)
        if known >= len(session) or not np.array_equal(session[:known], self.clicks):
            known = 0
            self.number += 1
        self.clicks = session
        for item in session[known:].tolist():
            predicted = model.predict_next(self.number, item, items, timestamp=latest)
        return predicted


asked = Sessions()


def scores(sessions: list[Items]) -> Scores:
    return np.stack([asked.predict(session).to_numpy() for session in sessions])


job.finish(scores, lambda session: asked.predict(session).nlargest(20))
