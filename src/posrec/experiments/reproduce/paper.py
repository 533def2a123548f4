"""What the paper reports, transcribed: the tables of section 5 in percent.

Other results are figures without numbers: only sentences about them can be checked (`claims.py`).
"""

import re

METRICS = ("recall@5", "recall@10", "mrr@5", "mrr@10")
Figure = tuple[float, float | None]  # mean, and deviation where the paper gives one
PaperTable = dict[str, dict[str, str]]  # figures of METRICS by dataset and row

TITLES = {
    "yoochoose1_64": "Yoochoose 1/64",
    "yoochoose1_4": "Yoochoose 1/4",
    "diginetica": "Diginetica",
}

# Training and test samples of each dataset: by these a prepared dataset is known to be the paper's.
SAMPLES = {
    "yoochoose1_64": (369_859, 55_898),
    "yoochoose1_4": (5_917_746, 55_898),
    "diginetica": (719_470, 60_858),
}

BEST_LAMBDA2 = {"yoochoose1_64": 0.5, "yoochoose1_4": 0.5, "diginetica": 1.0}

OVERALL: PaperTable = {
    "yoochoose1_64": {
        "POP": "2.37 4.56 0.56 1.13",
        "S-POP": "9.96 20.18 15.25 17.96",
        "Item-KNN": "28.35±0.13 41.82±0.08 19.37±0.12 21.24±0.07",
        "BPR-MF": "7.64±0.18 20.47±0.14 8.58±0.15 11.65±0.11",
        "FPMC": "22.93±0.09 35.38±0.19 11.83±0.17 14.57±0.10",
        "GRU4REC": "37.81±0.08 50.30±0.13 20.13±0.09 22.81±0.05",
        "NARM": "44.69±0.12 57.56±0.09 25.43±0.05 27.16±0.08",
        "STAMP": "46.42±0.13 58.67±0.07 28.05±0.08 29.66±0.10",
        "SR-GNN": "47.33±0.07 60.04±0.11 28.32±0.10 30.08±0.12",
        "FGNN": "47.12±0.10 60.13±0.08 28.45±0.06 30.17±0.09",
        "GC-SAN": "46.48±0.08 59.47±0.11 27.58±0.18 29.33±0.06",
        "SASRec": "46.65±0.16 58.98±0.10 28.13±0.12 29.87±0.13",
        "PosRec": "47.96±0.15 60.90±0.07 28.83±0.12 30.57±0.09",
    },
    "yoochoose1_4": {
        "POP": "0.76 0.98 0.09 0.15",
        "S-POP": "8.69 18.57 14.84 16.87",
        "Item-KNN": "30.16±0.15 41.86±0.13 18.54±0.09 20.29±0.14",
        "BPR-MF": "1.15±0.11 2.61±0.06 0.79±0.05 1.13±0.07",
        "FPMC": "",  # a dash in the paper
        "GRU4REC": "36.80±0.10 49.60±0.12 19.71±0.08 21.43±0.05",
        "NARM": "44.95±0.08 57.73±0.07 25.60±0.09 27.39±0.11",
        "STAMP": "45.38±0.12 58.03±0.10 27.38±0.12 29.08±0.09",
        "SR-GNN": "47.71±0.09 60.64±0.09 28.33±0.07 30.24±0.06",
        "FGNN": "47.63±0.14 60.68±0.13 28.43±0.10 30.19±0.08",
        "GC-SAN": "46.97±0.07 59.86±0.14 28.12±0.08 29.72±0.09",
        "SASRec": "45.21±0.18 57.88±0.108 27.46±0.17 29.23±0.15",
        "PosRec": "47.97±0.12 60.92±0.18 29.29±0.07 31.03±0.08",
    },
    "diginetica": {
        "POP": "0.34 0.68 0.06 0.13",
        "S-POP": "2.67 9.95 9.32 11.79",
        "Item-KNN": "11.75±0.09 24.09±0.08 8.34±0.12 10.63±0.18",
        "BPR-MF": "0.78±0.10 2.28±0.14 0.07±0.03 0.83±0.06",
        "FPMC": "4.49±0.07 15.71±0.012 2.86±0.21 5.17±0.13",
        "GRU4REC": "21.87±0.06 32.67±0.12 11.83±0.09 13.26±0.07",
        "NARM": "24.43±0.07 36.09±0.09 12.48±0.07 14.02±0.10",
        "STAMP": "25.85±0.07 37.46±0.10 14.42±0.08 15.96±0.12",
        "SR-GNN": "26.53±0.09 37.87±0.14 14.99±0.05 16.49±0.06",
        "FGNN": "26.46±0.13 37.82±0.08 15.06±0.12 16.55±0.13",
        "GC-SAN": "26.29±0.08 37.75±0.07 14.73±0.12 16.23±0.09",
        "SASRec": "25.87±0.13 37.53±0.09 14.37±0.16 16.12±0.11",
        "PosRec": "27.30±0.12 38.87±0.16 15.31±0.09 16.85±0.08",
    },
}

PLUG_IN: PaperTable = {
    "yoochoose1_64": {
        "STAMP": "46.42 58.67 28.05 29.66",
        "STAMP + LDPE": "46.78 58.82 28.31 29.94",
        "SASRec": "46.65 58.98 28.13 29.87",
        "SASRec + LDPE": "46.89 59.17 28.37 30.11",
    },
    "diginetica": {
        "STAMP": "25.85 37.46 14.42 15.96",
        "STAMP + LDPE": "26.23 37.81 14.79 16.34",
        "SASRec": "25.87 37.53 14.37 16.12",
        "SASRec + LDPE": "26.26 37.90 14.71 16.53",
    },
}

TABLES = {"overall": OVERALL, "plug-in": PLUG_IN}


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
