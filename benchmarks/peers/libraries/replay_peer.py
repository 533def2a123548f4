"""SASRec of RePlay, with 128 sessions a batch and early stopping as in RecBole.

It has no defaults for these.
"""

from collections.abc import Sequence
from typing import Any

import lightning
import torch
from replay.data import FeatureHint, FeatureSource, FeatureType
from replay.data.nn import TensorFeatureInfo, TensorFeatureSource, TensorSchema
from replay.nn.lightning import LightningModule
from replay.nn.lightning.callback import ComputeMetricsCallback
from replay.nn.sequential import SasRec
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.peers.libraries.exchange import Items, Scores, prefixes, read_job
from benchmarks.peers.libraries.lightning_rule import callbacks

# The defaults of SasRec.from_params.
LENGTH = 50
WIDTH = 192
job = read_job()


def padded(sessions: Sequence[Items], length: int = LENGTH) -> Tensor:
    """Numbers from 0, padded on the left with the number of items."""
    clicks = torch.full((len(sessions), length), job.items)
    for row, session in enumerate(sessions):
        latest = torch.from_numpy(session[session <= job.items][-length:] - 1)
        clicks[row, length - len(latest) :] = latest
    return clicks


def features(clicks: Tensor) -> dict[str, Any]:
    return {"feature_tensors": {"item_id": clicks}, "padding_mask": clicks < job.items}


def training_batch(sessions: list[Items]) -> dict[str, Any]:
    clicks = padded(sessions, LENGTH + 1)
    labels = clicks[:, 1:, None]
    return {
        **features(clicks[:, :-1]),
        "positive_labels": labels,
        "target_padding_mask": labels < job.items,
    }


def validation_batch(samples: list[tuple[Items, int]]) -> dict[str, Any]:
    sessions, targets = zip(*samples, strict=True)
    following = torch.tensor(targets)[:, None] - 1
    return {**features(padded(sessions)), "ground_truth": following}


item = TensorFeatureInfo(
    "item_id",
    is_seq=True,
    feature_type=FeatureType.CATEGORICAL,
    embedding_dim=WIDTH,
    padding_value=job.items,
    cardinality=job.items,
    feature_hint=FeatureHint.ITEM_ID,
    feature_sources=[TensorFeatureSource(FeatureSource.INTERACTIONS, "item_id")],
)
torch.set_float32_matmul_precision("high")  # as Lightning advises
lightning.seed_everything(0)
model = SasRec.from_params(TensorSchema(item), **job.settings)
module = LightningModule(model)
rule = callbacks(job, lightning.pytorch, "mrr@10", patience=10)
trainer = lightning.Trainer(
    max_epochs=300,
    accelerator=job.device,
    callbacks=[ComputeMetricsCallback(["mrr"], [10]), *rule],
    logger=False,
    num_sanity_val_steps=0,
    enable_progress_bar=False,
)
train: Any = job.train
validation: Any = prefixes(job.validation)
with job.training():
    trainer.fit(
        module,
        DataLoader(train, batch_size=128, shuffle=True, collate_fn=training_batch),
        DataLoader(validation, batch_size=512, collate_fn=validation_batch),
    )
module.load_state_dict(torch.load(rule[-1].best_model_path)["state_dict"])
module.to(job.device).eval()


@torch.no_grad()
def scores(sessions: list[Items]) -> Scores:
    logits = model(**features(padded(sessions).to(job.device)))["logits"]
    result: Scores = logits[:, : job.items].cpu().numpy()
    return result


job.finish(scores, lambda session: torch.from_numpy(scores([session])).topk(20))
