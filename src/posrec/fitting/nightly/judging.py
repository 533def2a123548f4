"""The clicks that no model has been trained on, and how well models predict them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.latest import HOUR
from posrec.evaluation.metrics import gains
from posrec.evaluation.novelty import targets_of
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.nightly.gate import ALL, KNOWN
from posrec.progress import Progress
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run


def moment(time: int | Tensor) -> str:
    """A time in milliseconds as text."""
    return datetime.fromtimestamp(int(time) / 1000, UTC).isoformat(timespec="seconds")


def begun_after(data: PreparedDataset, since: int | None) -> PreparedDataset:
    """The dataset with the test sessions that began after `since`, and all of their clicks."""
    test = data.full_test
    first = 0 if since is None else int((test.times <= since).sum())
    begin = int(test.offsets[first])
    latest = test.part(first, test.sessions)
    latest = replace(
        latest,
        items=test.items[begin:],
        offsets=latest.offsets - begin,
        targets=None if latest.targets is None else latest.targets - begin,
    )
    return replace(data, test=latest, full_test=latest)


def describe_latest(data: PreparedDataset, since: int | None) -> dict[str, float]:
    """Counts and shares of what the log has of the sessions after `since`; gate.py has their
    meanings."""
    hours: dict[str, list[int]] = data.manifest["latest_hours"]
    begin = -1 if since is None else since // HOUR
    is_new = [hour > begin for hour in hours["hour"]]
    totals = {
        name: sum(count for count, new in zip(counts, is_new, strict=True) if new)
        for name, counts in hours.items()
    }
    clicks = max(1, totals["clicks"])
    return {
        "clicks": totals["clicks"],
        "sessions": totals["sessions"],
        "unknown": float(
            (data.train_clicks[data.test.items.long()] == 0).double().mean()
        ),
        "one_click": totals["one_click"] / max(1, totals["sessions"]),
        "repeats": totals["repeats"] / clicks,
        "at_once": totals["at_once"] / clicks,
    }


def compared(
    models: dict[str, Run],
    data: PreparedDataset,
    items: str | None,
    metric: str,
    device: str,
    progress: Progress,
) -> dict[str, Any]:
    """The metric of each model, served with a file of items, on the clicks whose item all of them
    know and on all clicks; with two models, the standard error of their difference too."""
    targets = targets_of(data.test)
    known = torch.ones(len(targets), dtype=torch.bool)
    name, _, cutoff = metric.partition("@")
    gained = {}
    for model, run in models.items():
        if items is not None:
            run = Recommender(run, device).with_items(items, progress).run
        known &= knows(run, data)[targets]
        ranks = evaluate_run(run, data, device, progress, match_ids=True).full_ranks
        assert ranks is not None
        gained[model] = gains(ranks, name, int(cutoff))
    chosen = {KNOWN: known, ALL: torch.ones_like(known)}
    samples = {part: int(of_part.sum()) for part, of_part in chosen.items()}
    figures: dict[str, Any] = {"samples": samples}
    for model, gain in gained.items():
        figures[model] = {
            part: float(gain[of_part].mean()) if samples[part] else None
            for part, of_part in chosen.items()
        }
    if len(gained) > 1:
        first, second = gained.values()
        figures["error"] = {
            part: standard_error((first - second)[of_part])
            for part, of_part in chosen.items()
        }
    return figures


def knows(run: Run, data: PreparedDataset) -> Tensor:
    """[items + 1] whether the run can recommend each item of the dataset."""
    ids = [*data.vocabulary.ids, *data.new_items]
    numbers = [run.vocabulary.find(item) or 0 for item in ids]
    known = [1 <= number <= run.model.items for number in numbers]
    return torch.tensor([False, *known])


def standard_error(values: Tensor) -> float:
    """Of their mean."""
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0
