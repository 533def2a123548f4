"""A sequential model of RecBole: its files of prepared sessions, training with early stopping, and
scores."""

from functools import partial

import numpy as np
import torch
from exchange import prefixes, read_job

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
    "stamp": "STAMP",
    "gcsan": "GCSAN",
    "fpmc": "FPMC",
}
job = read_job()
most = job.settings.get(
    "MAX_ITEM_LIST_LENGTH", 50
)  # RecBole does not shorten the sessions of prepared files itself
folder = job.folder / "shop"
folder.mkdir(exist_ok=True)
session = 0
for part, sessions in (
    ("train", job.train),
    ("valid", job.validation),
    ("test", job.test),
):
    with (folder / f"shop.{part}.inter").open("w") as file:
        file.write("session_id:token\titem_id_list:token_seq\titem_id:token\n")
        for prefix, target in prefixes(sessions):
            session += 1
            file.write(f"{session}\t{' '.join(map(str, prefix[-most:]))}\t{target}\n")

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
        "epochs": job.epochs,
        "gpu_id": "0" if job.device == "cuda" else "",
        **({} if job.model == "fpmc" else {"train_neg_sample_args": None}),
        **job.settings,
    },
)
init_seed(config["seed"], config["reproducibility"])
init_logger(config)
dataset = create_dataset(config)
train_data, valid_data, test_data = data_preparation(config, dataset)
model = get_model(config["model"])(config, train_data.dataset).to(config["device"])
trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
trainer._train_epoch = job.timed(trainer._train_epoch)  # measures
save = trainer._save_checkpoint  # measures
trainer._save_checkpoint = lambda *arguments, **named: (
    job.is_best(),
    save(*arguments, **named),
)  # measures
job.begin()  # measures
trainer.fit(train_data, valid_data, show_progress=False)
model.load_state_dict(
    torch.load(trainer.saved_model_file, map_location=config["device"])["state_dict"]
)
model.eval()

longest = test_data.dataset.inter_feat["item_id_list"].shape[
    1
]  # padding changes the scores of some models
number_of_item = np.zeros(job.vocabulary + 1, dtype=np.int64)
for token, number in dataset.field2token_id["item_id"].items():
    if token != "[PAD]":
        number_of_item[int(token)] = number


@torch.no_grad()
def scores(sessions):
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
    predicted = model.full_sort_predict(Interaction(fields).to(config["device"])).view(
        len(sessions), -1
    )
    return predicted[:, number_of_item[1 : job.items + 1]].cpu().numpy()


def answer(session):
    """RecBole's public interface ranks sessions of its own test file, by their ids."""
    return full_sort_topk(
        dataset.token2id("session_id", ["new"]), model, test_data, 20, config["device"]
    )


job.finish(scores, answer, epochs_by_default=300)
