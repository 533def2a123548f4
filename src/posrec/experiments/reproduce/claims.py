"""The claims of section 5 (`paper.toml`), and the rules by which our tables answer them.

A claim held if every difference that it names was shown, did not hold if one was shown the other
way round, and is unclear otherwise. "Comparable" rows are within half a point of each other, with
the whole 95 % interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from posrec.evaluation.significance import LEVEL
from posrec.experiments.reproduce.paper import PAPER, dataset_of
from posrec.experiments.reproduce.tables import TESTED

HELD = "held"
FAILED = "did not hold"
UNCLEAR = "unclear"


@dataclass(frozen=True)
class Claim:
    """That each row of `better` is better than each of `worse`."""

    experiment: str
    text: str
    better: Sequence[str]
    worse: Sequence[str]
    metrics: Sequence[str] = TESTED
    datasets: Sequence[str] | None = None  # of the paper; None: any
    within: float | None = None  # points: the rows are comparable, not in an order

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(product(self.better, self.worse))

    def applies_to(self, experiment: str, paper_dataset: str | None) -> bool:
        has_dataset = self.datasets is None or paper_dataset in self.datasets
        return self.experiment == experiment and has_dataset


CLAIMS = [Claim(**claim) for claim in PAPER["claims"]]
# Tested in addition to the claims: rows that are not in the paper.
EXTRA_PAIRS = {
    "overall": [("PosRec", "VSKNN"), ("PosRec", "STAN")],
    "encodings": [("LDPE", "RPE")],
}


def pairs_of(experiment: str, paper_dataset: str | None) -> list[tuple[str, str]]:
    """Every pair that is tested in a table, once."""
    pairs: list[tuple[str, str]] = []
    for claim in CLAIMS:
        if claim.applies_to(experiment, paper_dataset):
            pairs += claim.pairs
    return list(dict.fromkeys(pairs + EXTRA_PAIRS.get(experiment, [])))


def answer_claims(tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answer to every claim by every table and metric where one of its pairs was tested."""
    answers = []
    for claim, table in product(CLAIMS, tables):
        if claim.applies_to(table["experiment"], dataset_of(table["dataset"])):
            answers += [judge(claim, table, metric) for metric in claim.metrics]
    return [answer for answer in answers if answer]


def judge(claim: Claim, table: dict[str, Any], metric: str) -> dict[str, Any] | None:
    """The answer to a claim, as in summary.json; `deciding` is what the verdict rests on."""
    tested = [
        finding
        for finding in table["findings"]
        if finding["metric"] == metric
        and (finding["first"], finding["second"]) in claim.pairs
    ]
    if not tested:
        return None
    against = [finding for finding in tested if supports(claim, finding) < 0]
    unclear = [finding for finding in tested if supports(claim, finding) == 0]
    if against:
        verdict = FAILED
    elif unclear or len(tested) < len(claim.pairs):
        verdict = UNCLEAR
    else:
        verdict = HELD

    def strength(finding: dict[str, Any]) -> float:
        difference: float = finding["difference"]
        return difference if claim.within is None else -abs(difference)

    return {
        "claim": claim.text,
        "experiment": claim.experiment,
        "dataset": table["dataset"],
        "metric": metric,
        "verdict": verdict,
        "deciding": min(against or unclear or tested, key=strength),
    }


def supports(claim: Claim, finding: dict[str, Any]) -> int:
    """1: the comparison shows what the claim says, -1: the contrary, 0: neither."""
    difference = finding["difference"]
    if claim.within is None:
        if finding["p"] >= LEVEL:
            return 0
        return 1 if difference > 0 else -1
    margin = finding["margin"]
    if margin is None:
        return 0
    if abs(difference) + margin <= claim.within:
        return 1
    return -1 if abs(difference) - margin > claim.within else 0
