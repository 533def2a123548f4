"""From a run and a dataset to its metrics: every item is ranked for every test sample."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.device import choose_device
from posrec.errors import InputError
from posrec.evaluation.breakdown import days_of_samples, metrics_by_group
from posrec.evaluation.evaluate import Evaluation, evaluate as rank_all
from posrec.evaluation.lists import list_metrics
from posrec.evaluation.metrics import RANKING, rank_metrics
from posrec.evaluation.novelty import (
    metrics_by_novelty,
    ranks_as_served,
    targets_of,
)
from posrec.io import FolderReader
from posrec.models.base import SessionModel
from posrec.models.own_code import is_own
from posrec.models.registry import MODELS
from posrec.progress import Progress, default_progress
from posrec.recommend.plan import checked_exclude
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import METRICS, RANKS, Run, open_finished
from posrec.runs.run import load_run, write_evaluation


def evaluate(
    recommender: Recommender,
    data: PreparedDataset,
    progress: Progress | None = None,
    exclude: str | None = None,
) -> Evaluation:
    """Evaluate a recommender on the test part of a dataset; nothing is written.

    Args:
        recommender: from `posrec.fit` or `Recommender.load`.
        data: a dataset with the same items as the one that the recommender was trained on.
        progress: where to report progress; by default a bar in a notebook, and nothing elsewhere.
        exclude: as in `Recommender.recommend`; a target that is left out is a miss.

    Returns:
        The metrics, and the rank of every test target.

    Raises:
        InputError: if the dataset has other items than the recommender, no test part, or test
            sessions that the recommender may have been trained on.

    >>> import posrec, tempfile
    >>> from pathlib import Path
    >>> from posrec.testing import small_dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = small_dataset(Path(folder) / "shop")
    >>> posrec.evaluate(posrec.fit(data, model="pop"), data).to_frame().columns[:2]
    ['recall@5', 'recall@10']
    """
    check_evaluable(recommender.run, data)
    progress = progress or default_progress()
    return rank_test_part(recommender.run, data, recommender.device, progress, exclude)


def evaluate_run(
    run: Run,
    data: PreparedDataset,
    device: str = "auto",
    progress: Progress | None = None,
    match_ids: bool = False,
    exclude: str | None = None,
    items: Any = None,
) -> Evaluation:
    """As `evaluate`, for a run; metrics.json and ranks.npy are written into its folder.

    With `match_ids` the dataset may have other items, as a later one of the same shop: they are
    matched by id, and a target that the run does not know is a miss. `items` is a file of items
    that the run is served with. With any of these, and with `exclude`, nothing is written.
    """
    torch_device = choose_device(device)
    progress = progress or default_progress()
    check_evaluable(run, data, match_ids)
    if items is not None:
        run = Recommender(run, device).with_items(items, progress).run
    outcome = rank_test_part(run, data, torch_device, progress, exclude)
    if not match_ids and exclude is None and items is None:
        write_evaluation(run, outcome.as_json(), outcome.ranks)
    return outcome


def evaluate_finished(
    path: Path,
    data: PreparedDataset,
    device: str,
    progress: Progress,
    match_ids: bool = False,
) -> Evaluation:
    """As `evaluate_run`, for the run in a folder, in which nothing is written."""
    reader, config = open_finished(path)
    stored = stored_evaluation(reader, data)
    if stored is not None:
        return stored
    if config["model"] not in MODELS or is_own(str(config.get("encoding"))):
        raise InputError(
            f"{path} is a run of a model or an encoding of your own; posrec evaluate {path} "
            f"{data.path} --model FILE.py:SPEC (or --encoding FILE.py:NAME) has to store its "
            "ranks first"
        )
    progress.message(
        f"{path} has no stored ranks of the test samples of {data.path}; its model ranks them"
    )
    run = load_run(path)
    if match_ids and run.vocabulary.ids != data.vocabulary.ids:
        return evaluate_run(run, data, device, progress, match_ids)
    check_evaluable(run, data)
    return rank_test_part(run, data, choose_device(device), progress)


def stored_evaluation(reader: FolderReader, data: PreparedDataset) -> Evaluation | None:
    """The evaluation that a run holds, if it is of the same test samples."""
    if not (reader.has(METRICS) and reader.has(RANKS)):
        return None
    metrics = reader.json(METRICS)
    measured_on = [metrics.get(name) for name in ("dataset", "samples", "ranking")]
    needed = [data.fingerprint, len(data.test), RANKING]
    if measured_on != needed or "by_novelty" not in metrics:
        return None
    ranks = torch.from_numpy(reader.array(RANKS))
    lengths = data.test.clicks_before(torch.arange(len(data.test)))
    figures = rank_metrics(ranks)
    for name, value in metrics.items():
        if name.startswith(("coverage", "popularity")):
            figures[name] = value
    by_novelty = metrics["by_novelty"]
    return Evaluation(
        figures, ranks, lengths, by_novelty=by_novelty, dataset=data.fingerprint
    )


def check_evaluable(run: Run, data: PreparedDataset, match_ids: bool = False) -> None:
    data.require_test_part()
    dataset = str(run.config.get("dataset"))
    has_same_items = (
        dataset == data.fingerprint or run.vocabulary.ids == data.vocabulary.ids
    )
    if not (match_ids or has_same_items):
        raise InputError(
            f"{run.path} was trained on other items (dataset {dataset[:12]}) than {data.path} "
            f"has (dataset {data.fingerprint[:12]}); evaluate it on its own dataset, or match "
            "the items by id with --match-ids"
        )
    check_not_trained_on(run, data)


def check_not_trained_on(run: Run, data: PreparedDataset) -> None:
    """Refuse a run that may know test sessions of another dataset of the same shop."""
    trained_until = run.config.get("trained_until")
    if trained_until is None or data.trained_until is None:
        return  # a log without times
    if run.config.get("dataset") == data.fingerprint:
        return
    test = data.test
    seen = int((test.times <= trained_until).sum())
    if seen:
        raise InputError(
            f"{run.path} may have been trained on {seen:,} of the {test.sessions:,} test "
            f"sessions of {data.path}: they began before the last session of its training "
            "did. Evaluate it on its own dataset or on a later one"
        )


@torch.inference_mode()
def rank_test_part(
    run: Run,
    data: PreparedDataset,
    device: torch.device,
    progress: Progress,
    exclude: str | None = None,
) -> Evaluation:
    """All metrics of a run. If it has other items than the dataset, they are matched by id, and
    there are no metrics of its lists beyond accuracy."""
    checked_exclude(exclude)
    model = run.model.to(device).eval()
    items = model.items
    ids = [*data.vocabulary.ids, *data.new_items]
    found = [run.vocabulary.find(item) or 0 for item in ids]
    numbers = torch.tensor([0, *found], dtype=torch.int32)  # of items in the run
    numbers[numbers > items] = 0
    test = data.test
    has_same_items = run.vocabulary.ids == data.vocabulary.ids
    if not has_same_items:
        # The model knows no numbers above those of its items.
        unknown = numbers.where(numbers > 0, items + 1)
        unknown[0] = 0  # padding stays padding
        test = test.renumbered(unknown)
    popularity = torch.as_tensor(run.popularity)
    clicks = torch.cat([popularity.new_zeros(1), popularity])

    def rank(sessions: SessionDataset) -> Evaluation:
        longest = model.config.max_length
        on_device = sessions.to(device)
        return rank_all(
            model, on_device, items, longest, clicks, progress, exclude=exclude
        )

    outcome = rank(test)
    recent = popularity if run.recent is None else torch.as_tensor(run.recent)
    full_ranks = ranks_as_served(data, numbers, recent, test, outcome, rank)
    of_lists = {}
    if has_same_items:
        assert outcome.top is not None
        vectors = None
        if isinstance(model, SessionModel):
            vectors = model.similarity_vectors()
        columns = data.vocabulary.columns
        of_lists = list_metrics(outcome.top, targets_of(test), clicks, vectors, columns)
    return replace(
        outcome,
        of_lists=of_lists,
        by_novelty=metrics_by_novelty(data, full_ranks),
        full_ranks=full_ranks,
        by_day=metrics_by_group(outcome.ranks, days_of_samples(data)),
        dataset=data.fingerprint,
    )
