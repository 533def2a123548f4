"""The clicks that no model has been trained on, and how well models predict them."""

from dataclasses import replace
from datetime import UTC, datetime

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.latest import HOUR
from posrec.evaluation.metrics import gains
from posrec.evaluation.novelty import targets_of
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.job import FitOptions
from posrec.fitting.nightly.home import Record
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run


def moment(time: int | Tensor) -> str:
    """A time in milliseconds as text."""
    return datetime.fromtimestamp(int(time) / 1000, UTC).isoformat(timespec="seconds")


def begun_after(data: PreparedDataset, since: int) -> PreparedDataset:
    """The dataset with the test sessions that began after `since`, and all of their clicks."""
    test = data.full_test
    first = int((test.times <= since).sum())
    latest = test.cut(first, test.sessions)
    return replace(data, test=latest, full_test=latest)


def described(data: PreparedDataset, since: int) -> dict[str, float]:
    """Counts and shares, which gate.py explains, of the log's sessions after `since`."""
    hours = {name: torch.tensor(n) for name, n in data.manifest["latest_hours"].items()}
    is_new = hours.pop("hour") > since // HOUR
    counts = {name: int(values[is_new].sum()) for name, values in hours.items()}
    clicks = max(1, counts["clicks"])
    unknown = data.train_clicks[data.test.items.long()] == 0
    return {
        **counts,
        "one_click": counts["one_click"] / max(1, counts["sessions"]),
        "repeats": counts["repeats"] / clicks,
        "at_once": counts["at_once"] / clicks,
        "unknown": float(unknown.double().mean()),
    }


def compared(
    models: dict[str, Run],
    data: PreparedDataset,
    items: str | None,
    metric: str,
    fit: FitOptions,
) -> Record:
    """The metric of each model, served with a file of items, on the clicks whose item all of them
    know and on all clicks; and the standard error of the difference of two models."""
    targets = targets_of(data.test)
    chosen = dict.fromkeys(("known", "all"), torch.ones(len(targets), dtype=torch.bool))
    name, _, cutoff = metric.partition("@")
    gained = {}
    for model, run in models.items():
        if items is not None:
            run = Recommender(run, fit.device).with_items(items, fit.progress).run
        chosen["known"] = chosen["known"] & knows(run, data)[targets]
        outcome = evaluate_run(run, data, fit.device, fit.progress, match_ids=True)
        assert outcome.full_ranks is not None
        gained[model] = gains(outcome.full_ranks, name, int(cutoff))
    samples = {part: int(mask.sum()) for part, mask in chosen.items()}
    figures: Record = {"samples": samples}
    for model, gain in gained.items():
        figures[model] = {
            part: float(gain[mask].mean()) if samples[part] else None
            for part, mask in chosen.items()
        }
    if len(gained) > 1:
        difference = gained["new"] - gained["running"]
        figures["error"] = {
            part: float(difference[mask].std(correction=0).nan_to_num())
            / max(1, samples[part]) ** 0.5
            for part, mask in chosen.items()
        }
    return figures


def knows(run: Run, data: PreparedDataset) -> Tensor:
    """[items + 1] whether the run can recommend each item of the dataset."""
    ids = [*data.vocabulary.ids, *data.new_items]
    numbers = torch.tensor([0, *(run.vocabulary.find(item) or 0 for item in ids)])
    return (numbers >= 1) & (numbers <= run.model.items)
