"""A model of RecTools: tables of interactions, and a dataset of new sessions for an answer."""

import numpy as np
import pandas as pd
import pytorch_lightning
from exchange import Items, Scores, read_job
from implicit.nearest_neighbours import CosineRecommender
from rectools import Columns
from rectools.dataset import Dataset, IdMap, Interactions
from rectools.models import ImplicitItemKNNWrapperModel, PopularModel, SASRecModel

job = read_job()


def interactions(sessions: list[Items]) -> pd.DataFrame:
    """A row a click; its time is its number, since only the order of clicks is used."""
    lengths = [len(session) for session in sessions]
    seconds = pd.to_timedelta(np.arange(sum(lengths)), unit="s")
    return pd.DataFrame(
        {
            Columns.User: np.repeat(np.arange(len(sessions)), lengths),
            Columns.Item: np.concatenate(sessions),
            Columns.Weight: 1.0,
            Columns.Datetime: pd.Timestamp(0) + seconds,
        }
    )


pytorch_lightning.seed_everything(0)
epochs = min(3, job.epochs) if job.model == "sasrec" else 0
if job.model == "sasrec":
    model = SASRecModel(epochs=epochs, **job.settings)
elif job.model == "itemknn":
    cosine = CosineRecommender(num_threads=job.threads, **job.settings)
    model = ImplicitItemKNNWrapperModel(cosine)
else:
    model = PopularModel(**job.settings)
job.begin()  # measures
dataset = Dataset.construct(interactions(job.train))
model.fit(dataset)
job.is_best()  # measures
job.epochs_were(epochs)  # measures


def recommend(sessions: list[Items], count: int) -> pd.DataFrame:
    clicks = interactions(sessions)
    clicks = clicks[clicks[Columns.Item].isin(dataset.item_id_map.external_ids)]
    users = IdMap.from_values(np.arange(len(sessions)))
    items = dataset.item_id_map
    new = Dataset(users, items, Interactions.from_raw(clicks, users, items))
    asked = clicks[Columns.User].unique()
    return model.recommend(asked, new, k=count, filter_viewed=False)


def scores(sessions: list[Items]) -> Scores:
    table = recommend(sessions, job.items)
    result = np.full((len(sessions), job.items), -np.inf)
    result[table[Columns.User], table[Columns.Item] - 1] = table[Columns.Score]
    return result


job.finish(scores, lambda session: recommend([session], 20), epochs_by_default=3)
