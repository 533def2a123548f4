"""A Transformer of RecTools, trained as its guide to advanced training shows, and asked with a
dataset of new sessions."""

from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning
import torch
from rectools import Columns
from rectools.dataset import Dataset, IdMap, Interactions
from rectools.models import BERT4RecModel, SASRecModel

from benchmarks.peers.libraries.exchange import Items, Scores, read_job
from benchmarks.peers.libraries.lightning_rule import callbacks

RANKED = 100  # items of a list; the others have ranks past every cutoff
METRIC = "NDCG@10"
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


def latest_of_validation(table: pd.DataFrame) -> Any:
    """The clicks that are held out: the last one of each validation session."""
    is_last = ~table[Columns.User].duplicated(keep="last")
    return (is_last & (table[Columns.User] >= len(job.train))).to_numpy()


class Validation(pytorch_lightning.Callback):  # type: ignore[misc]
    """NDCG@10 of the held-out clicks."""

    def on_validation_epoch_start(self, *_: Any) -> None:
        self.gains: list[torch.Tensor] = []

    def on_validation_batch_end(
        self, _: Any, module: Any, outputs: Any, batch: Any, *more: Any
    ) -> None:
        targets = batch["y"][:, -1:]
        logits = outputs["logits"].view(len(targets), -1)
        above = (logits > logits.gather(1, targets)).sum(1)
        self.gains.append((above < 10) / (above + 2).log2())

    def on_validation_epoch_end(self, _: Any, module: Any) -> None:
        module.log(METRIC, torch.cat(self.gains).mean())


def trainer() -> pytorch_lightning.Trainer:
    rule = callbacks(job, pytorch_lightning, METRIC, patience=5)
    return pytorch_lightning.Trainer(
        max_epochs=100,
        accelerator=job.device,
        devices=1,
        callbacks=[Validation(), *rule],
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
    )


torch.set_float32_matmul_precision("high")  # as Lightning advises
pytorch_lightning.seed_everything(0)
models = {"sasrec": SASRecModel, "bert4rec": BERT4RecModel}
model = models[job.model](
    get_trainer_func=trainer,
    get_val_mask_func=latest_of_validation,
    **job.settings,
)
dataset = Dataset.construct(interactions([*job.train, *job.validation]))
with job.training():
    model.fit(dataset)
best = model.fit_trainer.checkpoint_callback.best_model_path
model.load_weights_from_checkpoint(best)
# Those of the clicks that were not held out.
trained = model.data_preparator.item_id_map.external_ids


def recommend(sessions: list[Items], count: int) -> pd.DataFrame:
    clicks = interactions(sessions)
    clicks = clicks[clicks[Columns.Item].isin(trained)]
    users = IdMap.from_values(np.arange(len(sessions)))
    items = dataset.item_id_map
    new = Dataset(users, items, Interactions.from_raw(clicks, users, items))
    asked = clicks[Columns.User].unique()
    return model.recommend(asked, new, k=count, filter_viewed=False)


def scores(sessions: list[Items]) -> Scores:
    table = recommend(sessions, RANKED)
    result = np.full((len(sessions), job.items), -np.inf)
    result[table[Columns.User], table[Columns.Item] - 1] = table[Columns.Score]
    return result


job.finish(scores, lambda session: recommend([session], 20), rows=1024)
