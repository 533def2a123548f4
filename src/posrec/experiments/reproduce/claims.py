"""The claims of section 5 as data, and the rules by which our tables answer them.

A claim is a list of pairs "this row is better than that one". It held if every such difference was
shown, did not hold if one was shown the other way round, and is unclear otherwise. "Comparable"
rows are within half a point of each other, with the whole 95 % interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from posrec.evaluation.significance import LEVEL
from posrec.experiments.reproduce.grid import EXPERIMENTS, WITHOUT_ANCHORS
from posrec.experiments.reproduce.paper import BEST_LAMBDA2, dataset_of
from posrec.experiments.reproduce.tables import TESTED, Pairs

HELD = "held"
FAILED = "did not hold"
UNCLEAR = "unclear"
COMPARABLE = 0.5  # points
SHALLOW = ("POP", "S-POP", "Item-KNN", "BPR-MF", "FPMC")


@dataclass(frozen=True)
class Claim:
    experiment: str
    text: str
    pairs: Pairs
    metrics: tuple[str, ...] = TESTED
    datasets: tuple[str, ...] | None = None  # of the paper; None: any
    within: float | None = None  # points: the rows are comparable, not in an order

    def applies_to(self, experiment: str, paper_dataset: str | None) -> bool:
        has_dataset = self.datasets is None or paper_dataset in self.datasets
        return self.experiment == experiment and has_dataset


def better_than(best: str, labels: Sequence[str]) -> list[tuple[str, str]]:
    return [(best, label) for label in labels if label != best]


def paper_rows(experiment: str, *without: str) -> list[str]:
    return [
        row.label
        for row in EXPERIMENTS[experiment].rows
        if not row.extra and row.label not in without
    ]


def best_lambda2(best: float, where: str) -> Claim:
    label = f"λ2 = {best:g}"
    datasets = tuple(name for name, value in BEST_LAMBDA2.items() if value == best)
    pairs = better_than(label, paper_rows("sensitivity"))
    return Claim("sensitivity", f"{label} is best on {where}", pairs, datasets=datasets)


CLAIMS = (
    Claim(
        "overall",
        "PosRec is better than every baseline",
        better_than("PosRec", paper_rows("overall")),
    ),
    Claim("overall", "S-POP is better than POP", [("S-POP", "POP")]),
    Claim(
        "overall",
        "Item-KNN is the best of the traditional methods",
        better_than("Item-KNN", SHALLOW),
    ),
    Claim(
        "overall",
        "GRU4REC is better than the traditional methods",
        better_than("GRU4REC", SHALLOW),
    ),
    Claim(
        "overall",
        "NARM and STAMP are better than GRU4REC",
        [("NARM", "GRU4REC"), ("STAMP", "GRU4REC")],
    ),
    Claim("overall", "STAMP is better than NARM", [("STAMP", "NARM")]),
    Claim("overall", "SASRec is slightly better than STAMP", [("SASRec", "STAMP")]),
    Claim("encodings", "LDPE is better than no encoding", [("LDPE", "none")]),
    Claim(
        "encodings",
        "LDPE is the best encoding in PosRec",
        better_than("LDPE", paper_rows("encodings", "none")),
    ),
    Claim("encodings", "LPE is slightly better than LRPE", [("LPE", "LRPE")]),
    Claim(
        "encodings",
        "ALPE and 2DLPE are comparable with LDPE",
        [("LDPE", "ALPE"), ("LDPE", "2DLPE")],
        within=COMPARABLE,
    ),
    Claim(
        "encodings",
        "SPE and RSPE are comparable with DPE",
        [("DPE", "SPE"), ("DPE", "RSPE")],
        within=COMPARABLE,
    ),
    Claim(
        "encodings",
        "ASPE is the worst of the fixed encodings",
        [("SPE", "ASPE"), ("RSPE", "ASPE"), ("DPE", "ASPE"), ("2DSPE", "ASPE")],
    ),
    Claim("plug-in", "LDPE improves STAMP", [("STAMP + LDPE", "STAMP")]),
    Claim(
        "plug-in", "LDPE improves SASRec, which has LPE", [("SASRec + LDPE", "SASRec")]
    ),
    Claim(
        "anchors",
        "Anchors improve SR-GNN",
        [("SR-GNN + anchors", "SR-GNN")],
        TESTED[:1],
    ),
    Claim("anchors", "Anchors improve FGNN", [("FGNN + anchors", "FGNN")], TESTED[:1]),
    Claim("anchors", "Anchors improve GC-SAN", [("GC-SAN + anchors", "GC-SAN")]),
    Claim("anchors", "Anchors improve PosRec", [("PosRec", WITHOUT_ANCHORS)]),
    best_lambda2(0.5, "Yoochoose"),
    best_lambda2(1.0, "Diginetica"),
)

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
