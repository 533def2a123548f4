"""The tables of results/held_out.json: data that nobody tuned on, and what positions are worth."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENCODINGS = {"none": "none", "lpe": "forward", "lrpe": "backward", "ldpe": "dual"}
Table = list[list[str]]


def stored(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def figures(dataset: str, model: str, encoding: str, metric: str) -> list[float]:
    """Of each seed."""
    wanted = (dataset, model, encoding)
    return [
        row[metric]
        for row in stored("held_out")["rows"]
        if (row["dataset"], row["model"], row["encoding"]) == wanted
    ]


def held_out() -> Table:
    """Both models with their defaults."""
    rows = [["", "test samples", "posrec-plus R@20", "M@20", "PosRec R@20", "M@20"]]
    for dataset, about in stored("held_out")["datasets"].items():
        row = [dataset, f"{about['test_samples']:,}"]
        for model in ("posrec-plus", "posrec"):
            for metric in ("recall@20", "mrr@20"):
                row.append(f"{fmean(figures(dataset, model, 'ldpe', metric)):.2f}")
        rows.append(row)
    return rows


def cells(by_encoding: dict[str, list[float]]) -> list[str]:
    """The mean and the range of two seeds; a dash where nothing was measured."""
    row = []
    for encoding in ENCODINGS:
        values = by_encoding[encoding]
        spread = (max(values) - min(values)) / 2 if values else 0
        row.append(f"{fmean(values):.2f} ± {spread:.2f}" if values else "-")
    return row


def of_posrec() -> Table:
    """R@10 of the paper's model."""
    rows = [["PosRec, R@10", *ENCODINGS.values()]]
    names = {"diginetica": "Diginetica", "yoochoose1_64": "Yoochoose 1/64"}
    for table in stored("reproduction/summary")["tables"]:
        if table["experiment"] == "encodings":
            found = [table["rows"][name.upper()] for name in list(ENCODINGS)[1:]]
            values = [table["rows"]["none"], *found]
            spreads = [value["recall@10"] for value in values]
            row = [f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in spreads]
            rows.append([names[table["dataset"]], *row])
    return [*rows, *of_held_out("posrec", "recall@10")]


def of_posrec_plus() -> Table:
    """R@20 of the default model."""
    head = ["posrec-plus, R@20", *ENCODINGS.values()]
    return [head, *of_held_out("posrec-plus", "recall@20")]


def of_held_out(model: str, metric: str) -> Table:
    return [
        [
            dataset,
            *cells({one: figures(dataset, model, one, metric) for one in ENCODINGS}),
        ]
        for dataset in stored("held_out")["datasets"]
    ]
