"""A sequential model of RecBole, trained with early stopping on its files of prepared sessions."""

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.peers.libraries.exchange import Items, Scores, prefixes, read_job
from benchmarks.peers.libraries.recbole_graphs import checked

# RecBole 1.2.1 asks numpy for names that numpy 2 removed, and stores its whole config in a
# checkpoint.
vars(np).update({"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_})
torch.load = partial(torch.load, weights_only=False)

from recbole.config import Config  # noqa: E402
from recbole.data import create_dataset, data_preparation  # noqa: E402
from recbole.data.interaction import Interaction  # noqa: E402
from recbole.utils import get_model, get_trainer, init_logger, init_seed  # noqa: E402
from recbole.utils.case_study import full_sort_topk  # noqa: E402

NAMES = {
    "sasrec": "SASRec",
    "gru4rec": "GRU4Rec",
    "narm": "NARM",
    "srgnn": "SRGNN",
    "gcsan": "GCSAN",
    "core": "CORE",
}
job = read_job()
has_quick_graphs = job.settings.pop("quick_graphs", False)
# RecBole does not shorten the sessions of prepared files itself.
most = job.settings.get("MAX_ITEM_LIST_LENGTH", 50)
folder = job.folder / "shop"
folder.mkdir(exist_ok=True)
number = 0
splits = {"train": job.train, "valid": job.validation, "test": job.test}
for split, sessions in splits.items():
    with (folder / f"shop.{split}.inter").open("w") as file:
        file.write("session_id:token\titem_id_list:token_seq\titem_id:token\n")
        for prefix, target in prefixes(sessions):
            number += 1
            file.write(f"{number}\t{' '.join(map(str, prefix[-most:]))}\t{target}\n")

config = Config(
    model=NAMES[job.model],
    dataset="shop",
    config_dict={
        "data_path": str(job.folder),
        "checkpoint_dir": str(job.folder / "saved"),
        "benchmark_filename": ["train", "valid", "test"],
        "alias_of_item_id": ["item_id_list"],
        "load_col": {"inter": ["session_id", "item_id_list", "item_id"]},
        "USER_ID_FIELD": "session_id",
        "ITEM_LIST_LENGTH_FIELD": "item_length",
        "gpu_id": "0" if job.device == "cuda" else "",
        "train_neg_sample_args": None,
        **job.settings,
    },
)
init_seed(config["seed"], config["reproducibility"])
init_logger(config)
dataset = create_dataset(config)
train_data, valid_data, test_data = data_preparation(config, dataset)
model = get_model(config["model"])(config, train_data.dataset).to(config["device"])
if has_quick_graphs:
    model._get_slice = checked(model._get_slice)
trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
trainer._train_epoch = job.timed(trainer._train_epoch)
save = trainer._save_checkpoint


def save_best(*arguments: Any, **named: Any) -> None:
    job.is_best()
    save(*arguments, **named)


trainer._save_checkpoint = save_best
with job.training():
    trainer.fit(train_data, valid_data, show_progress=False)
best = torch.load(trainer.saved_model_file, map_location=config["device"])
model.load_state_dict(best["state_dict"])
model.eval()

# Padding changes the scores of some models.
longest = test_data.dataset.inter_feat["item_id_list"].shape[1]
number_of_item = np.zeros(job.vocabulary + 1, dtype=np.int64)
for token, token_id in dataset.field2token_id["item_id"].items():
    if token != "[PAD]":
        number_of_item[int(token)] = token_id


@torch.no_grad()
def scores(sessions: list[Items]) -> Scores:
    clicks = torch.zeros(len(sessions), longest, dtype=torch.int64)
    for row, session in enumerate(sessions):
        latest = number_of_item[session[-longest:]]
        clicks[row, : len(latest)] = torch.from_numpy(latest)
    lengths = (clicks > 0).sum(1)
    fields = {
        "item_id_list": clicks,
        "item_length": lengths,
        "session_id": torch.zeros_like(lengths),
    }
    batch = Interaction(fields).to(config["device"])
    predicted = model.full_sort_predict(batch).view(len(sessions), -1)
    result: Scores = predicted[:, number_of_item[1 : job.items + 1]].cpu().numpy()
    return result


def answer(session: Items) -> object:
    """RecBole's public interface ranks sessions of its own test file, by their ids."""
    ids = dataset.token2id("session_id", ["new"])
    return full_sort_topk(ids, model, test_data, 20, config["device"])


job.finish(scores, answer)
