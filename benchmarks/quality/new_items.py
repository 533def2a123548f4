"""Items without a click: how well posrec-plus recommends them by their attributes.

    python -m benchmarks.quality.new_items --data posrec-demo/data --set d=48 --set epochs=3

The rarest tenth of a dataset's items is treated as new: their clicks are removed from the training
part, and the test part is left as it is. Test samples whose target is new and samples whose target
is not are ranked by popularity, and by posrec-plus without and with attributes.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from benchmarks.harness.inputs import prepare_sessions, sessions_of
from benchmarks.harness.results import parser_for, write_result
from posrec.config import parse_pairs
from posrec.data.dataset import PreparedDataset, load
from posrec.evaluation.metrics import rank_metrics
from posrec.fitting.fit import fit_run
from posrec.progress import TerminalProgress

METRICS = ("recall@20", "mrr@20")
NEW = 0.1


def main() -> None:
    parser = parser_for(__doc__, "results/new_items.json")
    parser.add_argument("--data", type=Path, default=Path("posrec-demo/data"))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="pairs",
        help="key=value of posrec-plus",
    )
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    settings = parse_pairs(options.pairs)
    # Popularity and posrec-plus without attributes do not know the new items.
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "pop": ("pop", {}),
        "without": ("posrec-plus", settings),
        "with": ("posrec-plus", {**settings, "attributes": "auto"}),
    }
    with tempfile.TemporaryDirectory() as name, TerminalProgress() as progress:
        work = Path(name)
        data = without_clicks_on_rare_items(load(options.data), work / "data")
        targets = data.test.items[data.test.locate(torch.arange(len(data.test)))[1]]
        is_new = targets > data.train_items
        figures: dict[str, Any] = {}
        for kind, (model, model_settings) in models.items():
            ranks = []
            for seed in range(1 if model == "pop" else options.seeds):
                run = work / f"{kind}-{seed}"
                seeded = {**model_settings, "seed": seed}
                _, outcome = fit_run(
                    data, model, run, seeded, progress=progress, export=False
                )
                ranks.append(outcome.ranks)
            figures[kind] = {
                "new": figures_of_seeds([of_seed[is_new] for of_seed in ranks]),
                "known": figures_of_seeds([of_seed[~is_new] for of_seed in ranks]),
            }
    result = {
        "about": "mean and standard deviation over seeds, x100",
        "known_items": data.train_items,
        "new_items": data.recommendable_items - data.train_items,
        "samples": {"new": int(is_new.sum()), "known": int((~is_new).sum())},
        "models": figures,
    }
    write_result(options.out, result)


def figures_of_seeds(ranks: list[Tensor]) -> dict[str, list[float]]:
    metrics = [rank_metrics(of_seed) for of_seed in ranks]
    return {name: spread([of_seed[name] for of_seed in metrics]) for name in METRICS}


def spread(values: list[float]) -> list[float]:
    """Mean and standard deviation, x100."""
    return [
        round(100 * statistics.fmean(values), 2),
        round(100 * statistics.pstdev(values), 2),
    ]


def without_clicks_on_rare_items(
    data: PreparedDataset, folder: Path
) -> PreparedDataset:
    """The same test part; the training part without the clicks on the rarest items."""
    clicks = np.bincount(data.train.items.numpy(), minlength=data.train_items + 1)[1:]
    rarest = np.argsort(clicks, kind="stable")[: round(NEW * data.train_items)] + 1
    rare = {data.vocabulary.item(item) for item in rarest.tolist()}
    train = []
    for session in sessions_of(data, data.train):
        remaining = [item for item in session if item not in rare]
        if len(remaining) >= 2:
            train.append(remaining)
    ids = [data.vocabulary.item(item) for item in range(1, data.train_items + 1)]
    columns = {
        name: values[: data.train_items]
        for name, values in data.vocabulary.columns.items()
    }
    items = pl.DataFrame({"item_id": ids, **columns})
    return prepare_sessions(
        folder, train, sessions_of(data, data.test), items=items, all_items=True
    )


if __name__ == "__main__":
    main()
