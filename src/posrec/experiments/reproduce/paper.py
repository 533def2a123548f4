"""What the paper reports: its datasets, its tables of section 5 in percent (`paper.toml`)."""

import re
import tomllib
from pathlib import Path

PAPER = tomllib.loads(
    Path(__file__).with_name("paper.toml").read_text(encoding="utf-8")
)
DATASETS = PAPER["datasets"]
TABLES: dict[str, dict[str, dict[str, str]]] = PAPER["tables"]
OVERALL = TABLES["overall"]
METRICS = ("recall@5", "recall@10", "mrr@5", "mrr@10")  # of the figures of a row
Figure = tuple[float, float | None]  # mean, and deviation where the paper gives one


def dataset_of(folder_name: str) -> str | None:
    """Which dataset of the paper a prepared folder is, by its name.

    >>> [dataset_of(name) for name in ("Diginetica-srgnn", "yoochoose1_64", "yoochoose-1-4")]
    ['diginetica', 'yoochoose1_64', 'yoochoose1_4']
    >>> [dataset_of(name) for name in ("shop", "yoochoose", "yoochoose1_16")]
    [None, None, None]
    """
    name = folder_name.lower()
    if name.startswith("diginetica"):
        return "diginetica"
    fraction = re.fullmatch(r"yoo(?:choose)?[^0-9]*(?:1[^0-9]+)?(64|4)", name)
    return f"yoochoose1_{fraction[1]}" if fraction else None


def figures_of(experiment: str, dataset: str | None, row: str) -> dict[str, Figure]:
    """The paper's figures of a table's row, by metric; empty where it has none."""
    cells = TABLES.get(experiment, {}).get(dataset or "", {}).get(row, "").split()
    if not cells:
        return {}
    figures: dict[str, Figure] = {}
    for metric, cell in zip(METRICS, cells, strict=True):
        mean, _, deviation = cell.partition("±")
        figures[metric] = (float(mean), float(deviation) if deviation else None)
    return figures


def impossible(figures: dict[str, Figure]) -> list[str]:
    """Why no ranking can have these figures of a row together; empty where one can.

    A hit in the first K gives MRR@K between 1/K and 1, so R/K <= M <= R. A hit at 6..10 gives
    between 1/10 and 1/6, so M@10 - M@5 is between a tenth and a sixth of R@10 - R@5.
    """
    if not figures:
        return []
    recall5, recall10, mrr5, mrr10 = (figures[name][0] for name in METRICS)
    later = recall10 - recall5
    gained = mrr10 - mrr5
    grows = "MRR grows from 5 to 10"
    # The smaller, the larger, how much rounding to two digits may hide, and what is wrong.
    bounds = (
        (mrr5, recall5, 0.01, "MRR@5 is above Recall@5"),
        (mrr10, recall10, 0.01, "MRR@10 is above Recall@10"),
        (recall5 / 5, mrr5, 0.006, "MRR@5 is below a fifth of Recall@5"),
        (recall10 / 10, mrr10, 0.006, "MRR@10 is below a tenth of Recall@10"),
        (gained, later / 6, 0.012, f"{grows} by more than the added hits can give"),
        (later / 10, gained, 0.011, f"{grows} by less than the added hits must give"),
    )
    return [
        reason
        for smaller, larger, rounding, reason in bounds
        if smaller > larger + rounding
    ]
