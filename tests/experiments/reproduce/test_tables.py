"""Tables and claims from made-up jobs whose differences are known."""

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.significance import Comparison, combine_errors
from posrec.experiments.reproduce.claims import (
    CLAIMS,
    FAILED,
    HELD,
    UNCLEAR,
    Claim,
    answer_claims,
    judge,
    pairs_of,
)
from posrec.experiments.reproduce.grid import EXPERIMENTS, Experiment, TableRow, jobs_of
from posrec.experiments.reproduce.jobs import Job, JobResult
from posrec.experiments.reproduce.tables import (
    find_differences,
    make_table,
)
from tests.helpers import chain_shop

ROWS = (TableRow("A", "posrec"), TableRow("B", "sasrec"), TableRow("C", "pop"))
THREE = Experiment("plug-in", "", "", ROWS)
HIGH = (0.50, 0.51, 0.52)
LOW = (0.40, 0.41, 0.42)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return chain_shop(tmp_path_factory.mktemp("tables"), seed=2, sessions=900)


def result(folder: Path, job: Job, ranks: np.ndarray) -> JobResult:
    folder.mkdir(exist_ok=True)
    path = folder / f"{job.name}.json".replace(" ", "_")
    np.savez(path.with_suffix(".npz"), ranks=ranks.astype(np.uint8))
    metrics = {}
    for k in (5, 10):
        metrics[f"recall@{k}"] = 100 * float((ranks <= k).mean())
        metrics[f"mrr@{k}"] = 100 * float(np.where(ranks <= k, 1 / ranks, 0).mean())
    return JobResult(job, {"metrics": metrics, "total_seconds": 1.0}, path)


def table(
    folder: Path,
    shop: PreparedDataset,
    hits: Mapping[str, Sequence[float]],
    experiment: Experiment = THREE,
) -> dict[str, Any]:
    """Rows with these shares of samples at rank 1, a number for each seed; the rest at rank 50, in
    the same order for all."""
    order = np.random.default_rng(0).permutation(len(shop.test)) / len(shop.test)
    results = {}
    for row in experiment.rows:
        shares = hits.get(row.label, ())
        for job, share in zip(jobs_of(row, "shop", 3), shares, strict=False):
            results[job.name] = result(folder, job, np.where(order < share, 1, 50))
    labels = [row.label for row in experiment.rows]
    return make_table(experiment, shop, "shop", results, [*permutations(labels, 2)], 3)


def finding(table: dict[str, Any], first: str, second: str) -> dict[str, Any]:
    (match,) = [
        finding
        for finding in table["findings"]
        if (finding["first"], finding["second"]) == (first, second)
        and finding["metric"] == "recall@10"
    ]
    return match


def test_means_deviations_and_differences(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    tested = table(tmp_path, shop, {"A": HIGH, "B": LOW, "C": (0.2,)})
    recalls = {label: row["recall@10"] for label, row in tested["rows"].items()}
    assert recalls["A"] == pytest.approx([51, 1], abs=0.3)
    assert len(recalls["C"]) == 1  # no deviation
    first = finding(tested, "A", "B")["difference"]
    assert first == pytest.approx(recalls["A"][0] - recalls["B"][0], abs=0.011)
    assert finding(tested, "B", "A")["difference"] == -first
    assert [finding(tested, "A", other)["p"] < 0.05 for other in "BC"] == [True, True]


def test_a_difference_must_outdo_the_seeds(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    wild = {"A": (0.35, 0.50, 0.65), "B": (0.25, 0.40, 0.55), "C": (0.45,)}
    difference = finding(table(tmp_path, shop, wild), "A", "B")
    assert difference["p"] > 0.05
    assert difference["margin"] > 20


def test_ranks_that_are_not_those_of_the_metric(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    ranks = np.arange(len(shop.test)) % 30 + 1
    runs = {}
    for row in ROWS:
        jobs = jobs_of(row, "shop", 2)
        runs[row.label] = [result(tmp_path, job, ranks) for job in jobs]
    assert find_differences(runs, [("A", "B")], shop)
    runs["A"][0].record["metrics"]["recall@10"] += 1
    with pytest.raises(InputError, match="ranks of A are not those"):
        find_differences(runs, [("A", "B")], shop)


def test_one_seed_shows_nothing(shop: PreparedDataset, tmp_path: Path) -> None:
    tested = table(tmp_path, shop, {"A": (0.5,), "B": (0.2,), "C": (0.1,)})
    difference = finding(tested, "A", "B")
    assert difference["difference"] > 25
    assert (difference["margin"], difference["p"]) == (None, 1.0)


def test_errors_of_sessions_and_seeds_add_up_by_hand() -> None:
    """Errors of 0.3 points over many sessions and 0.4 over three seeds: 0.5 together; of 2 degrees
    0.4^4 / 2 counts."""
    over_sessions = Comparison(0.02, 0.0, 0.0, 0.0, 0.003)
    over_seeds = [(0.4, 2), (0.0, math.inf)]
    points, margin, p = combine_errors(over_sessions, 10**9, over_seeds)
    freedom = 0.5**4 / (0.4**4 / 2)  # 4.88, whose 97.5 % quantile is 2.59
    assert freedom == pytest.approx(4.88, abs=0.01)
    assert (points, margin) == pytest.approx((2.0, 2.59 * 0.5), rel=2e-3)
    assert p == pytest.approx(0.0108, abs=5e-4)
    same = Comparison(0.0, 0.0, 0.0, 1.0, 0.0)
    assert combine_errors(same, 100, [(0.0, math.inf)]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), HELD),
        (HIGH, LOW, FAILED),
        (HIGH, HIGH, UNCLEAR),
    ],
)
def test_comparable_is_within_half_a_point_by_the_whole_interval(
    shop: PreparedDataset, tmp_path: Path, first: Any, second: Any, verdict: str
) -> None:
    claim = Claim("plug-in", "A and B are comparable", ["A"], ["B"], within=0.5)
    tested = table(tmp_path, shop, {"A": first, "B": second})
    answer = judge(claim, tested, "recall@10")
    assert answer is not None
    assert answer["verdict"] == verdict


@pytest.mark.parametrize(
    ("hits", "verdict", "against"),
    [
        ({"A": HIGH, "B": LOW, "C": (0.3,)}, HELD, "B"),
        ({"A": LOW, "B": HIGH, "C": (0.3,)}, FAILED, "B"),
        ({"A": LOW, "B": LOW, "C": (0.3,)}, UNCLEAR, "B"),
        ({"A": HIGH, "C": (0.3,)}, UNCLEAR, "C"),  # B is not run yet
    ],
)
def test_verdicts(
    shop: PreparedDataset,
    tmp_path: Path,
    hits: dict[str, Any],
    verdict: str,
    against: str,
) -> None:
    """The comparison that decided is the weakest one."""
    claim = Claim("plug-in", "A is best", ["A"], ["B", "C"])
    answer = judge(claim, table(tmp_path, shop, hits), "recall@10")
    assert answer is not None
    assert (answer["verdict"], answer["deciding"]["second"]) == (verdict, against)


def test_a_claim_without_a_tested_pair_is_not_answered(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    claim = Claim("plug-in", "A is best", ["A"], ["B", "C"])
    assert judge(claim, table(tmp_path, shop, {"A": HIGH}), "recall@10") is None


def test_claims_name_rows_that_exist_and_all_are_answered(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    for claim in CLAIMS:
        labels = {row.label for row in EXPERIMENTS[claim.experiment].rows}
        assert {*claim.better, *claim.worse} <= labels
    anchors = EXPERIMENTS["anchors"]
    hits = {row.label: HIGH if row.settings["anchors"] else LOW for row in anchors.rows}
    answers = answer_claims([table(tmp_path, shop, hits, anchors)])
    asked = set()
    for claim in CLAIMS:
        if claim.experiment == "anchors":
            asked |= {(claim.text, metric) for metric in claim.metrics}
    assert {(answer["claim"], answer["metric"]) for answer in answers} == asked
    assert {answer["verdict"] for answer in answers} == {HELD}


@pytest.mark.parametrize(
    ("dataset", "best"),
    [("yoochoose1_64", {"λ2 = 0.5"}), ("diginetica", {"λ2 = 1"}), (None, set())],
)
def test_which_lambda2_is_claimed_best_goes_by_the_dataset(
    dataset: str | None, best: set[str]
) -> None:
    assert {first for first, _ in pairs_of("sensitivity", dataset)} == best
