"""A model of posrec, trained as the peers are: without the validation sessions."""

import json
from dataclasses import replace
from typing import Any

import torch
from exchange import Items, Scores, read_job

import posrec
from posrec.data.dataset import SessionDataset
from posrec.fitting.fit import fit_run
from posrec.models.registry import find_spec
from posrec.nn.batch import SessionBatch
from posrec.progress import Progress
from posrec.training.settings import Settings

job = read_job()
torch.set_num_threads(job.threads)


class Times(Progress):  # measures
    best = -1.0  # measures

    def update(self, work: str, *_: Any, **named: Any) -> None:  # measures
        if work == "Evaluating" and not job.until_best:  # measures
            job.is_best()  # measures

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:  # measures
        if metrics[chosen_by] > self.best:  # measures
            self.best = metrics[chosen_by]  # measures
            job.is_best()  # measures


data = posrec.load(job.data)
spec = find_spec(job.model)
settings = {"protocol": "early-stop", **job.settings}
epochs_by_default = settings.pop("epochs", Settings(**spec.settings).epochs)
settings["epochs"] = min(epochs_by_default, job.epochs)
chosen_by = Settings(**spec.settings).choose_by  # measures
if not spec.is_trained or settings["protocol"] == "paper":
    # All train without the validation sessions.
    fitting = data.fitting
    items = fitting.items[: fitting.clicks]
    data = replace(data, train=SessionDataset(items, fitting.offsets, fitting.times))
out = job.folder / "run"
job.begin()  # measures
run, _ = fit_run(
    data, job.model, out, settings, job.device, progress=Times(), resumable=False
)
log = out / "log.jsonl"  # measures
if log.exists():  # measures
    lines = map(json.loads, log.read_text().splitlines())  # measures
    epochs = [line for line in lines if "loss" in line]  # measures
    job.epoch_seconds = [epoch["seconds"] for epoch in epochs]  # measures
recommender = posrec.Recommender.load(out)
model: Any = run.model.to(job.device).eval()


@torch.inference_mode()
def scores(sessions: list[Items]) -> Scores:
    clicks = [session.tolist() for session in sessions]
    batch = SessionBatch.of(clicks, model.config.max_length, model.stride)
    result: Scores = model.scores(batch.to(job.device)).cpu().numpy()
    return result


def answer(session: Items) -> object:
    clicks = [data.vocabulary.item(item) for item in session.tolist()]
    return recommender.recommend(clicks, k=20)


job.finish(scores, answer, epochs_by_default)
