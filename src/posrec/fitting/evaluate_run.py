"""From a run and a dataset to its metrics: every item is ranked for every test sample."""

from dataclasses import replace
from pathlib import Path

import torch

from posrec.data.dataset import PreparedDataset
from posrec.device import choose_device
from posrec.errors import InputError
from posrec.evaluation.evaluate import Evaluation, evaluate as rank_all
from posrec.evaluation.lists import list_metrics
from posrec.evaluation.metrics import RANKING, rank_metrics
from posrec.io import FolderReader
from posrec.models.base import Model, SessionModel
from posrec.models.own_code import is_own
from posrec.models.registry import MODELS
from posrec.progress import Progress, default_progress
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import METRICS, RANKS, Run, open_finished
from posrec.runs.run import load_run, write_evaluation
from posrec.training.loop import evaluate_on


def evaluate(
    recommender: Recommender, data: PreparedDataset, progress: Progress | None = None
) -> Evaluation:
    """Evaluate a recommender on the test part of a dataset; nothing is written.

    Args:
        recommender: from `posrec.fit` or `Recommender.load`.
        data: a dataset with the same items as the one that the recommender was trained on.
        progress: where to report progress; by default a bar in a notebook, and nothing elsewhere.

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
    return rank_test_part(recommender.model, data, recommender.device, progress)


def evaluate_run(
    run: Run,
    data: PreparedDataset,
    device: str = "auto",
    progress: Progress | None = None,
    match_ids: bool = False,
) -> Evaluation:
    """As `evaluate`, for a run; metrics.json and ranks.npy are written into its folder.

    With `match_ids` the dataset may have other items, as a later one of the same shop: they are
    matched by id, a target that the run does not know is a miss, and nothing is written.
    """
    torch_device = choose_device(device)
    progress = progress or default_progress()
    check_evaluable(run, data, match_ids)
    model = run.model.to(torch_device)
    if match_ids:
        return evaluate_matched(run, data, torch_device, progress)
    outcome = rank_test_part(model, data, torch_device, progress)
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
    torch_device = choose_device(device)
    return rank_test_part(run.model.to(torch_device), data, torch_device, progress)


def stored_evaluation(reader: FolderReader, data: PreparedDataset) -> Evaluation | None:
    """The evaluation that a run holds, if it is of the same test samples."""
    if not (reader.has(METRICS) and reader.has(RANKS)):
        return None
    metrics = reader.json(METRICS)
    measured_on = [metrics.get(name) for name in ("dataset", "samples", "ranking")]
    if measured_on != [data.fingerprint, len(data.test), RANKING]:
        return None
    ranks = torch.from_numpy(reader.array(RANKS))
    lengths = data.test.clicks_before(torch.arange(len(data.test)))
    figures = rank_metrics(ranks)
    for name, value in metrics.items():
        if name.startswith(("coverage", "popularity")):
            figures[name] = value
    return Evaluation(figures, ranks, lengths, dataset=data.fingerprint)


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
    model: Model, data: PreparedDataset, device: torch.device, progress: Progress
) -> Evaluation:
    """All metrics of a model on `device`, also those of its lists beyond accuracy."""
    outcome = evaluate_on(model, data, data.test, device, progress)
    assert outcome.top is not None
    _, target_click = data.test.locate(torch.arange(len(data.test)))
    targets = data.test.items[target_click].long()
    clicks = torch.bincount(data.train.items.long(), minlength=model.items + 1)
    vectors = model.similarity_vectors() if isinstance(model, SessionModel) else None
    columns = data.vocabulary.columns
    of_lists = list_metrics(outcome.top, targets, clicks, vectors, columns)
    return replace(outcome, of_lists=of_lists, dataset=data.fingerprint)


def evaluate_matched(
    run: Run, data: PreparedDataset, device: torch.device, progress: Progress
) -> Evaluation:
    items = run.model.items
    unknown = items + 1  # the model knows no numbers above those of its items
    numbers = [0]  # padding stays padding
    for item in data.vocabulary.ids:
        number = run.vocabulary.find(item)
        numbers.append(unknown if number is None else number)
    translated = torch.tensor(numbers, dtype=torch.int32)
    test = replace(data.test, items=translated[data.test.items.long()]).to(device)
    popularity = torch.as_tensor(run.popularity)
    clicks = torch.cat([popularity.new_zeros(1), popularity])
    model = run.model.eval()
    outcome = rank_all(model, test, items, model.config.max_length, clicks, progress)
    return replace(outcome, dataset=data.fingerprint)
