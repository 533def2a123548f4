"""Tables and claims from made-up jobs whose differences are known."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import chain_shop

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.significance import Comparison
from posrec.experiments.reproduce import claims
from posrec.experiments.reproduce.claims import (
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
    combine_errors,
    find_differences,
    make_table,
)

PAIR = Experiment(
    "plug-in",
    "",
    "",
    (TableRow("A", "posrec"), TableRow("B", "sasrec"), TableRow("C", "pop")),
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return chain_shop(tmp_path_factory.mktemp("tables"), seed=2, sessions=900)


def result(folder: Path, job: Job, ranks: np.ndarray, **more: Any) -> JobResult:
    folder.mkdir(exist_ok=True)
    path = folder / f"{job.name}.json".replace(" ", "_")
    np.savez(path.with_suffix(".npz"), ranks=ranks.astype(np.uint8))
    metrics = {f"recall@{k}": 100 * float((ranks <= k).mean()) for k in (5, 10)}
    metrics |= {
        f"mrr@{k}": 100 * float(np.where(ranks <= k, 1 / ranks, 0).mean())
        for k in (5, 10)
    }
    return JobResult(job, {"metrics": metrics, "total_seconds": 1.0, **more}, path)


def table(
    folder: Path,
    shop: PreparedDataset,
    hits: dict[str, Sequence[float]],
    experiment: Experiment = PAIR,
    seeds: int = 3,
) -> dict[str, Any]:
    """Rows with these shares of samples at rank 1, one number a seed; the rest at rank 50, the same
    order for all."""
    places = np.random.default_rng(0).permutation(len(shop.test)) / len(shop.test)
    results = {}
    for row in experiment.rows:
        for job, share in zip(
            jobs_of(row, "shop", seeds), hits.get(row.label, ()), strict=False
        ):
            results[job.name] = result(folder, job, np.where(places < share, 1, 50))
    pairs = [
        (a.label, b.label)
        for a in experiment.rows
        for b in experiment.rows
        if a is not b
    ]
    return make_table(experiment, shop, "shop", results, pairs, seeds)


def finding(of: dict[str, Any], first: str, second: str) -> dict[str, Any]:
    wanted = (first, second, "recall@10")
    (found,) = [
        one
        for one in of["findings"]
        if (one["first"], one["second"], one["metric"]) == wanted
    ]
    return found


def test_means_deviations_and_differences(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    made = table(
        tmp_path, shop, {"A": (0.50, 0.51, 0.52), "B": (0.40, 0.41, 0.42), "C": (0.2,)}
    )
    rows = made["rows"]
    assert rows["A"]["recall@10"] == [
        pytest.approx(51, abs=0.3),
        pytest.approx(1, abs=0.3),
    ]
    assert len(rows["C"]["recall@10"]) == 1  # no deviation
    difference = rows["A"]["recall@10"][0] - rows["B"]["recall@10"][0]
    assert finding(made, "A", "B")["difference"] == pytest.approx(difference, abs=0.011)
    assert (
        finding(made, "B", "A")["difference"] == -finding(made, "A", "B")["difference"]
    )
    assert [finding(made, "A", other)["p"] < 0.05 for other in "BC"] == [True, True]


def test_a_difference_must_outdo_the_seeds(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    """The same sessions, but other seeds might turn it round."""
    wild = table(
        tmp_path, shop, {"A": (0.35, 0.50, 0.65), "B": (0.25, 0.40, 0.55), "C": (0.45,)}
    )
    assert finding(wild, "A", "B")["p"] > 0.05
    assert finding(wild, "A", "B")["margin"] > 20


def test_ranks_that_are_not_those_of_the_metric(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    runs = {}
    for row in PAIR.rows:
        runs[row.label] = [
            result(tmp_path, job, np.arange(len(shop.test)) % 30 + 1)
            for job in jobs_of(row, "shop", 2)
        ]
    assert find_differences(runs, [("A", "B")], shop)
    runs["A"][0].record["metrics"]["recall@10"] += 1
    with pytest.raises(InputError, match="ranks of A are not those"):
        find_differences(runs, [("A", "B")], shop)


def test_one_seed_shows_nothing(shop: PreparedDataset, tmp_path: Path) -> None:
    made = table(tmp_path, shop, {"A": (0.5,), "B": (0.2,), "C": (0.1,)})
    found = finding(made, "A", "B")
    assert (found["difference"] > 25, found["margin"], found["p"]) == (True, None, 1.0)


def test_errors_of_sessions_and_seeds_add_up_by_hand() -> None:
    """Errors of 0.3 points over many sessions and 0.4 over three seeds: 0.5 together; of 2 degrees
    0.4^4 / 2 counts."""
    over_sessions = Comparison(0.02, 0.0, 0.0, 0.0, 0.003)
    points, margin, p = combine_errors(
        over_sessions, 10**9, [(0.4, 2), (0.0, math.inf)]
    )
    freedom = 0.5**4 / (0.4**4 / 2)  # 4.88, whose 97.5 % quantile is 2.59
    assert freedom == pytest.approx(4.88, abs=0.01)
    assert (points, margin) == pytest.approx((2.0, 2.59 * 0.5), rel=2e-3)
    assert p == pytest.approx(0.0108, abs=5e-4)
    assert combine_errors(
        Comparison(0.0, 0.0, 0.0, 1.0, 0.0), 100, [(0.0, math.inf)]
    ) == (0.0, 0.0, 1.0)


def test_comparable_is_within_half_a_point_by_the_whole_interval(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    claim = Claim("plug-in", "A and B are comparable", [("A", "B")], within=0.5)
    near = table(tmp_path / "a", shop, {"A": (0.5, 0.5, 0.5), "B": (0.5, 0.5, 0.5)})
    far = table(
        tmp_path / "b", shop, {"A": (0.50, 0.51, 0.52), "B": (0.40, 0.41, 0.42)}
    )
    between = table(
        tmp_path / "c", shop, {"A": (0.50, 0.51, 0.52), "B": (0.50, 0.51, 0.52)}
    )
    verdicts = []
    for made in (near, far, between):
        answer = judge(claim, made, "recall@10")
        assert answer is not None
        verdicts.append(answer["verdict"])
    assert verdicts == [HELD, FAILED, UNCLEAR]


@pytest.mark.parametrize(
    ("hits", "verdict", "against"),
    [
        ({"A": (0.50, 0.51, 0.52)}, None, None),  # none of its pairs was run
        ({"A": (0.50, 0.51, 0.52), "B": (0.40, 0.41, 0.42), "C": (0.3,)}, HELD, "B"),
        ({"A": (0.40, 0.41, 0.42), "B": (0.50, 0.51, 0.52), "C": (0.3,)}, FAILED, "B"),
        ({"A": (0.40, 0.41, 0.42), "B": (0.40, 0.41, 0.42), "C": (0.3,)}, UNCLEAR, "B"),
        ({"A": (0.50, 0.51, 0.52), "C": (0.3,)}, UNCLEAR, "C"),  # B is not run yet
    ],
)
def test_verdicts(
    shop: PreparedDataset,
    tmp_path: Path,
    hits: dict[str, Any],
    verdict: str | None,
    against: str | None,
) -> None:
    """The comparison that decided is the weakest one."""
    claim = Claim("plug-in", "A is best", [("A", "B"), ("A", "C")])
    answer = judge(claim, table(tmp_path, shop, hits), "recall@10")
    assert (answer and answer["verdict"], answer and answer["deciding"]["second"]) == (
        verdict,
        against,
    )


def test_claims_name_rows_that_exist_and_all_are_answered(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    for claim in claims.CLAIMS:
        labels = {row.label for row in EXPERIMENTS[claim.experiment].rows}
        assert {label for pair in claim.pairs for label in pair} <= labels
    of = EXPERIMENTS["anchors"]
    hits = {
        row.label: (0.5, 0.501, 0.502)
        if row.settings["anchors"]
        else (0.3, 0.301, 0.302)
        for row in of.rows
    }
    found = answer_claims([table(tmp_path, shop, hits, of)])
    asked = {
        (claim.text, metric)
        for claim in claims.CLAIMS
        if claim.experiment == "anchors"
        for metric in claim.metrics
    }
    assert {(one["claim"], one["metric"]) for one in found} == asked
    assert {one["verdict"] for one in found} == {HELD}


def test_which_lambda2_is_claimed_best_goes_by_the_dataset() -> None:
    assert {first for first, _ in pairs_of("sensitivity", "yoochoose1_64")} == {
        "λ2 = 0.5"
    }
    assert {first for first, _ in pairs_of("sensitivity", "diginetica")} == {"λ2 = 1"}
    assert pairs_of("sensitivity", None) == []
