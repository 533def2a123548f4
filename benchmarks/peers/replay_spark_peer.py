"""A model of RePlay that runs on Spark."""

import numpy as np
import pandas as pd
from exchange import read_job
from replay.data import Dataset, FeatureHint, FeatureInfo, FeatureSchema, FeatureType
from replay.models import ItemKNN, PopRec
from replay.utils.session_handler import get_spark_session
from replay.utils.spark_utils import convert2spark

job = read_job()
get_spark_session(spark_memory=4, shuffle_partitions=job.threads, core_count=job.threads)
schema = FeatureSchema(
    [
        FeatureInfo("session", FeatureType.CATEGORICAL, FeatureHint.QUERY_ID),
        FeatureInfo("item", FeatureType.CATEGORICAL, FeatureHint.ITEM_ID),
        FeatureInfo("rating", FeatureType.NUMERICAL, FeatureHint.RATING),
    ]
)


def dataset(sessions):
    frame = pd.DataFrame(
        {
            "session": np.repeat(np.arange(len(sessions)), [len(session) for session in sessions]),
            "item": np.concatenate(sessions) - 1,
            "rating": 1.0,
        }
    )
    return Dataset(schema, convert2spark(frame[frame["item"] < job.items].drop_duplicates()))


model = {"itemknn": ItemKNN, "pop": PopRec}[job.model](**job.settings)
job.begin()  # measures
model.fit(dataset(job.train))
job.is_best()  # measures


def recommend(sessions, count):
    return model.predict(dataset(sessions), k=count, filter_seen_items=False).toPandas()


def scores(sessions):
    found = recommend(sessions, job.items)
    of_all = np.full((len(sessions), job.items), -np.inf)
    of_all[found["session"], found["item"]] = found["rating"]
    return of_all


job.finish(scores, lambda session: recommend([session], 20), rows=4096)
