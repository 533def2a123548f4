"""The tables of results/baselines.json: settings that were chosen on validation, and GRU4Rec beside
its authors' code."""

from statistics import fmean
from typing import Any

from page_tables import Table, result

DATASETS = {"diginetica": "Diginetica", "yoochoose": "Yoochoose 1/64"}
NAMES = {
    "posrec": "PosRec",
    "sasrec": "SASRec",
    "gru4rec": "GRU4Rec",
    "narm": "NARM",
    "stamp": "STAMP",
    "fgnn": "FGNN",
}
AUTHORS = "authors"


def trainings() -> list[dict[str, Any]]:
    """Those on all sessions that rank the validation part."""
    rows = result("baselines")
    return [row for row in rows if row["ranked"] == "validation" and row["share"] == 1]


def choices() -> Table:
    """R@20 and M@20, the mean of two seeds."""
    head = ["", "settings"]
    for title in DATASETS.values():
        head += [f"{title} R@20", "M@20"]
    rows = [head]
    chosen = [row for row in trainings() if row["epochs"] is None]
    for model, name in NAMES.items():
        ways = sorted({row["way"] for row in chosen if row["model"] == model})
        for way in ways:
            cells = [name, f"`{way}`"]
            for dataset in DATASETS:
                seeds = [
                    row["metrics"]
                    for row in chosen
                    if (row["model"], row["way"], row["dataset"])
                    == (model, way, dataset)
                ]
                for metric in ("recall@20", "mrr@20"):
                    cells.append(f"{fmean(seed[metric] for seed in seeds):.2f}")
            rows.append(cells)
    return rows


def beside_authors() -> Table:
    """R@20 and M@20 after the same number of epochs."""
    head = ["the authors' settings"]
    for title in DATASETS.values():
        head += [f"{title}: the authors", "posrec"]
    pairs: dict[str, dict[tuple[str, str], str]] = {}
    for row in trainings():
        if row["epochs"] is not None:
            metrics = [
                f"{row['metrics'][name]:.1f}" for name in ("recall@20", "mrr@20")
            ]
            cell = " / ".join(metrics)
            pairs.setdefault(row["way"], {})[row["dataset"], row["model"]] = cell
    sides = [(dataset, model) for dataset in DATASETS for model in (AUTHORS, "gru4rec")]
    body = [
        [way, *(cells.get(side, "–") for side in sides)]
        for way, cells in sorted(pairs.items())
    ]
    return [head, *body]
