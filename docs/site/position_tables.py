"""The tables of docs/positions.md, from four result files: the report on the paper's experiments,
results/positions.json, results/positions_demo.json and results/held_out.json."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from held_out_tables import figures
from page_tables import Table, result

ENCODINGS = {"none": "none", "lpe": "forward", "lrpe": "backward", "ldpe": "dual"}
DATASETS = {"diginetica": "Diginetica", "yoochoose1_64": "Yoochoose 1/64"}


def of_posrec() -> Table:
    """R@10 of the paper's model."""
    rows = [["PosRec, R@10", *ENCODINGS.values()]]
    for table in result("reproduction/summary")["tables"]:
        if table["experiment"] == "encodings":
            found = [table["rows"][name.upper()] for name in list(ENCODINGS)[1:]]
            values = [table["rows"]["none"], *found]
            spreads = [value["recall@10"] for value in values]
            row = [f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in spreads]
            rows.append([DATASETS[table["dataset"]], *row])
    return [*rows, *of_held_out("posrec", "recall@10")]


def of_posrec_plus() -> Table:
    """R@20 of the default model."""
    rows = [["posrec-plus, R@20", *ENCODINGS.values()]]
    for dataset, title in DATASETS.items():
        cells = []
        for encoding in ENCODINGS:
            values = trained(dataset, encoding)["by_seed"]["recall@20"]
            cells.append(f"{fmean(values):.2f} ± {stdev(values):.2f}")
        rows.append([title, *cells])
    return [*rows, *of_held_out("posrec-plus", "recall@20")]


def gains() -> Table:
    """What each encoding adds to posrec-plus, with 95 % intervals and Holm's p."""
    others = list(ENCODINGS)[1:]
    rows = [["above none", "", *(ENCODINGS[encoding] for encoding in others)]]
    for dataset, title in DATASETS.items():
        for metric, short in (("recall@20", "R@20"), ("mrr@20", "M@20")):
            tests = [
                trained(dataset, encoding)["lower_than"][metric] for encoding in others
            ]
            cells = [
                f"{-test['by']:+.2f} ± {test['margin']:.2f} (p = {test['p']:.2f})"
                for test in tests
            ]
            rows.append([title, short, *cells])
    return rows


def of_demo() -> Table:
    """What `posrec positions` finds in the demo's shop, with 95 % intervals and Holm's p."""
    rows = [["what", "R@20", "M@20"]]
    worths = result("positions_demo")["worths"]
    for question in dict.fromkeys(worth["question"] for worth in worths):
        cells = [
            f"{worth['points']:+.2f} ± {worth['margin']:.2f} ({chance(worth['p'])})"
            for metric in ("recall@20", "mrr@20")
            for worth in worths
            if (worth["question"], worth["metric"]) == (question, metric)
        ]
        rows.append([question, *cells])
    return rows


def chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def trained(dataset: str, encoding: str) -> dict[str, Any]:
    """The row of results/positions.json."""
    rows: list[dict[str, Any]] = result("positions")["rows"]
    return next(
        row for row in rows if (row["dataset"], row["row"]) == (dataset, encoding)
    )


def of_held_out(model: str, metric: str) -> Table:
    rows = []
    for dataset in result("held_out")["datasets"]:
        cells = [
            mean_and_range(figures(dataset, model, encoding, metric))
            for encoding in ENCODINGS
        ]
        rows.append([dataset, *cells])
    return rows


def mean_and_range(values: Sequence[float]) -> str:
    """The mean of two seeds and half of their difference; a dash where nothing was measured."""
    if not values:
        return "-"
    return f"{fmean(values):.2f} ± {(max(values) - min(values)) / 2:.2f}"
