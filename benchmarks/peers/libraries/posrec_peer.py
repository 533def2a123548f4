"""A model of posrec, trained as the peers are: without the validation sessions."""

import json
from dataclasses import replace
from typing import Any

import torch

import posrec
from benchmarks.peers.libraries.exchange import Items, Scores, read_job
from posrec.data.dataset import SessionDataset
from posrec.fitting.fit import fit_run
from posrec.models.registry import find_spec
from posrec.nn.batch import SessionBatch
from posrec.progress import Progress
from posrec.training.settings import Settings

job = read_job()
torch.set_num_threads(job.threads)


class Times(Progress):
    best = -1.0
    best_epoch = 0

    def update(self, work: str, *_: Any, **named: Any) -> None:
        if work == "Evaluating" and not job.until_best:
            job.is_best()

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
        if metrics[chosen_by] > self.best:
            self.best = metrics[chosen_by]
            job.is_best()
            self.best_epoch = epoch


data = posrec.load(job.data)
settings: dict[str, Any] = {"protocol": "early-stop", **job.settings}
model_name = settings.pop("model", job.model)
spec = find_spec(model_name)
if job.most_minutes == 0:
    settings["epochs"] = 1  # the only limit of time that a training of posrec can have
chosen_by = Settings(**spec.settings).choose_by
if not spec.is_trained:
    # Trained models leave the validation sessions out of the training, like the peers.
    fitting = data.fitting
    items = fitting.items[: fitting.clicks]
    data = replace(data, train=SessionDataset(items, fitting.offsets, fitting.times))
out = job.folder / "run"
times = Times()
with job.training():
    run, _ = fit_run(
        data,
        model_name,
        out,
        settings,
        job.device,
        progress=times,
        resumable=False,
    )
log = out / "log.jsonl"
if log.exists():
    lines = map(json.loads, log.read_text().splitlines())
    epochs = [line for line in lines if "loss" in line]
    job.epoch_seconds = [epoch["seconds"] for epoch in epochs]
    job.best_epoch = times.best_epoch
recommender = posrec.Recommender.load(out, spec=spec)
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


job.finish(scores, answer)
