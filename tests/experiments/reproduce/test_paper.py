"""The paper's figures: spot checks against the printed tables, and the rows that can't be."""

from itertools import product

import pytest

from posrec.experiments.reproduce.grid import EXPERIMENTS
from posrec.experiments.reproduce.paper import (
    METRICS,
    OVERALL,
    TABLES,
    figures_of,
    impossible,
)


def test_rows_are_those_of_our_tables() -> None:
    for name, by_dataset in TABLES.items():
        labels = [row.label for row in EXPERIMENTS[name].rows if not row.extra]
        assert all(list(rows) == labels for rows in by_dataset.values())


def test_some_figures_as_printed() -> None:
    assert figures_of("overall", "diginetica", "PosRec")["mrr@10"] == (16.85, 0.08)
    assert figures_of("overall", "yoochoose1_4", "SASRec")["recall@5"] == (45.21, 0.18)
    plug_in = figures_of("plug-in", "diginetica", "SASRec + LDPE")
    assert plug_in["recall@10"] == (37.90, None)
    assert figures_of("overall", "yoochoose1_4", "FPMC") == {}  # a dash in the paper
    assert figures_of("anchors", "diginetica", "PosRec") == {}
    assert figures_of("overall", None, "PosRec") == {}


def test_the_two_tables_agree_on_the_models_they_share() -> None:
    for dataset, label in product(TABLES["plug-in"], ("STAMP", "SASRec")):
        overall = figures_of("overall", dataset, label)
        for metric, (mean, _) in figures_of("plug-in", dataset, label).items():
            assert mean == overall[metric][0]


@pytest.mark.parametrize(
    ("means", "wrong"),
    [
        ((20, 30, 10, 11.2), False),
        # M@5 is over R@5, and more is gained than the hits can give.
        ((9.96, 20.18, 15.25, 17.96), True),
        ((9.96, 9.96, 10.5, 10.5), True),  # M over R at both
        ((10, 10, 1.9, 1.9), True),  # a hit in five is worth a fifth at least
        ((20, 26, 10, 11.5), True),  # six points at ranks 6 to 10 are worth one at most
        ((20, 30, 10, 10.5), True),  # ten points there are worth one at least
        ((20, 26, 10, 11.0), False),
    ],
)
def test_what_no_ranking_can_have(means: tuple[float, ...], wrong: bool) -> None:
    row = zip(METRICS, means, strict=True)
    assert bool(impossible({name: (mean, None) for name, mean in row})) == wrong


def test_impossible_rows_of_the_paper() -> None:
    marked = {}
    for dataset, rows in OVERALL.items():
        by_row = {label: figures_of("overall", dataset, label) for label in rows}
        marked[dataset] = {label for label in rows if impossible(by_row[label])}
    assert marked == {
        "yoochoose1_64": {"POP", "S-POP", "BPR-MF", "FPMC", "GRU4REC"},
        "yoochoose1_4": {"POP", "S-POP", "BPR-MF"},
        "diginetica": {"POP", "S-POP", "Item-KNN", "BPR-MF", "FPMC"},
    }
