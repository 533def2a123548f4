"""The claims of section 5 as data, and the rules by which our tables answer them.

A claim is a list of pairs "this row is better than that one". It held if every such difference was shown, did not hold
if one was shown the other way round, and is unclear otherwise: the differences can be due to chance. Where the paper
says "comparable", the rows have to be within half a point of each other, with the whole 95 % interval.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from posrec.experiments.reproduce.grid import EXPERIMENTS, WITHOUT_ANCHORS
from posrec.experiments.reproduce.paper import BEST_LAMBDA2
from posrec.experiments.reproduce.tables import TESTED, Finding, Pairs, Table

HELD, FAILED, UNCLEAR = "held", "did not hold", "unclear"
SHORT = {"recall@5": "R@5", "recall@10": "R@10", "mrr@5": "M@5", "mrr@10": "M@10"}


@dataclass(frozen=True)
class Claim:
    experiment: str
    text: str
    pairs: Pairs
    metrics: tuple[str, ...] = TESTED
    datasets: tuple[str, ...] | None = None  # of the paper; None: any
    within: float | None = None  # points: the rows are comparable, not in an order


@dataclass(frozen=True)
class Answer:
    claim: Claim
    dataset: str
    metric: str
    verdict: str
    evidence: str
    findings: tuple[Finding, ...]

    @property
    def deciding(self) -> str:
        """The difference that decided, and of which row where the claim has several."""
        finding = decisive(self.claim, self.findings)
        name = f" {distinct_row(self.findings)(finding)}" if len(self.claim.pairs) > 1 else ""
        return signed(finding.difference) + name


def paper_rows(experiment: str, *without: str) -> list[str]:
    """The labels of a table's rows that are in the paper, except some."""
    return [row.label for row in EXPERIMENTS[experiment].rows if not row.extra and row.label not in without]


def better_than(best: str, labels: Sequence[str]) -> list[tuple[str, str]]:
    return [(best, label) for label in labels]


def comparable(text: str, pairs: Pairs) -> Claim:
    return Claim("encodings", text, pairs, within=COMPARABLE)


COMPARABLE = 0.5  # points
SHALLOW = ("POP", "S-POP", "Item-KNN", "BPR-MF", "FPMC")
CLAIMS = (
    Claim("overall", "PosRec is better than every baseline", better_than("PosRec", paper_rows("overall", "PosRec"))),
    Claim("overall", "S-POP is better than POP", [("S-POP", "POP")]),
    Claim("overall", "Item-KNN is the best of the traditional methods",
          better_than("Item-KNN", [label for label in SHALLOW if label != "Item-KNN"])),
    Claim("overall", "GRU4REC is better than the traditional methods", better_than("GRU4REC", SHALLOW)),
    Claim("overall", "NARM and STAMP are better than GRU4REC", [("NARM", "GRU4REC"), ("STAMP", "GRU4REC")]),
    Claim("overall", "STAMP is better than NARM", [("STAMP", "NARM")]),
    Claim("overall", "SASRec is slightly better than STAMP", [("SASRec", "STAMP")]),
    Claim("encodings", "LDPE is better than no encoding", [("LDPE", "none")]),
    Claim("encodings", "LDPE is the best encoding in PosRec",
          better_than("LDPE", paper_rows("encodings", "LDPE", "none"))),
    Claim("encodings", "LPE is slightly better than LRPE", [("LPE", "LRPE")]),
    comparable("ALPE and 2DLPE are comparable with LDPE", [("LDPE", "ALPE"), ("LDPE", "2DLPE")]),
    comparable("SPE and RSPE are comparable with DPE", [("DPE", "SPE"), ("DPE", "RSPE")]),
    Claim("encodings", "ASPE is the worst of the fixed encodings",
          [(label, "ASPE") for label in ("SPE", "RSPE", "DPE", "2DSPE")]),
    Claim("plug-in", "LDPE improves STAMP", [("STAMP + LDPE", "STAMP")]),
    Claim("plug-in", "LDPE improves SASRec, which has LPE", [("SASRec + LDPE", "SASRec")]),
    Claim("anchors", "Anchors improve SR-GNN", [("SR-GNN + anchors", "SR-GNN")], TESTED[:1]),
    Claim("anchors", "Anchors improve FGNN", [("FGNN + anchors", "FGNN")], TESTED[:1]),
    Claim("anchors", "Anchors improve GC-SAN", [("GC-SAN + anchors", "GC-SAN")]),
    Claim("anchors", "Anchors improve PosRec", [("PosRec", WITHOUT_ANCHORS)]),
    *(Claim("sensitivity", f"λ2 = {best:g} is best on {where}",
            better_than(f"λ2 = {best:g}", paper_rows("sensitivity", f"λ2 = {best:g}")),
            datasets=tuple(name for name, value in BEST_LAMBDA2.items() if value == best))
      for best, where in ((0.5, "Yoochoose"), (1.0, "Diginetica"))),
)  # fmt: skip

# Tested in addition to the claims: rows that are not in the paper.
EXTRA_PAIRS = {"overall": [("PosRec", "VSKNN"), ("PosRec", "STAN")], "encodings": [("LDPE", "RPE")]}


def pairs_of(experiment: str, paper_dataset: str | None) -> list[tuple[str, str]]:
    """Every pair that is tested in a table, once."""
    pairs = [pair for claim in CLAIMS if claim.experiment == experiment and applies_to(claim, paper_dataset)
             for pair in claim.pairs]  # fmt: skip
    return list(dict.fromkeys(pairs + EXTRA_PAIRS.get(experiment, [])))


def applies_to(claim: Claim, paper_dataset: str | None) -> bool:
    return claim.datasets is None or paper_dataset in claim.datasets


def answer_claims(tables: Sequence[Table]) -> list[Answer]:
    """Every claim for every table and metric that it is about, where at least one of its pairs was tested."""
    answers: list[Answer] = []
    for claim in CLAIMS:
        for table in tables:
            if table.experiment.name == claim.experiment and applies_to(claim, table.paper_dataset):
                answers += [answer for metric in claim.metrics if (answer := judge(claim, table, metric))]
    return answers


def judge(claim: Claim, table: Table, metric: str) -> Answer | None:
    by_pair = {(finding.first, finding.second): finding for finding in table.findings if finding.metric == metric}
    tested = tuple(by_pair[pair] for pair in claim.pairs if pair in by_pair)
    if not tested:
        return None
    if any(contradicts(claim, finding) for finding in tested):
        verdict = FAILED
    else:
        complete = len(tested) == len(claim.pairs)
        verdict = HELD if complete and all(supports(claim, finding) for finding in tested) else UNCLEAR
    return Answer(claim, table.dataset, metric, verdict, evidence(claim, tested), tested)


def supports(claim: Claim, finding: Finding) -> bool:
    if claim.within is None:
        return finding.direction > 0
    return abs(finding.difference) + finding.margin <= claim.within


def contradicts(claim: Claim, finding: Finding) -> bool:
    if claim.within is None:
        return finding.direction < 0
    return abs(finding.difference) - finding.margin > claim.within


def decisive(claim: Claim, tested: Sequence[Finding]) -> Finding:
    """The largest loss; without a loss the smallest difference that is not shown, else the smallest gain."""
    if claim.within is not None:
        return max(tested, key=lambda finding: abs(finding.difference))
    lost = [finding for finding in tested if finding.direction < 0]
    undecided = [finding for finding in tested if finding.direction == 0]
    return min(lost or undecided or tested, key=lambda finding: finding.difference)


def distinct_row(tested: Sequence[Finding]) -> Callable[[Finding], str]:
    """Names a finding among several by the row that they don't share: one row beats many, or many beat one."""
    one_best = len({finding.first for finding in tested}) == 1
    return lambda finding: finding.second if one_best else finding.first


def evidence(claim: Claim, tested: Sequence[Finding]) -> str:
    """What decided the answer, in a sentence."""
    missing = len(claim.pairs) - len(tested)
    note = f"; {missing} of {len(claim.pairs)} comparisons are not run yet" if missing else ""
    deciding, name = decisive(claim, tested), distinct_row(tested)
    closest = finding_sentence(deciding)
    if claim.within is not None:
        return f"{closest} at the widest, give or take {deciding.margin:.2f}{note}"
    if len(claim.pairs) == 1:
        return closest + note
    one_best = len({finding.first for finding in tested}) == 1  # else several rows are better than one
    word = "against" if one_best else "for"
    count = sum(finding.direction > 0 for finding in tested)
    shown = f"shown {word} {count or 'none'} of {len(tested)}"
    if lost := [finding for finding in tested if finding.direction < 0]:
        names = joined(map(name, lost))
        other = f"{names} {'is' if len(lost) == 1 else 'are'} better" if one_best else (
            f"{lost[0].second} is better than {names}"
        )  # fmt: skip
        return f"{other}: {closest}; {shown}{note}"
    if undecided := [finding for finding in tested if finding.direction == 0]:
        left = f", not {word} {joined(map(name, undecided))}" if count else ""
        return f"{shown}{left}: {closest}{note}"
    return f"{closest} at the closest{note}"


def joined(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def finding_sentence(finding: Finding) -> str:
    """The difference, its p, and how many seeds it rests on."""
    first, second = finding.seeds
    seeds = f"{first} and {second} seeds" if first != second else seeds_text(first)
    single = "; one seed can't say how steady it is" if finding.margin == float("inf") else ""
    points = f"{abs(finding.difference):.2f}"
    place = "level with" if points == "0.00" else f"{points} {'above' if finding.difference > 0 else 'below'}"
    return f"{finding.first} is {place} {finding.second} ({finding.p_text}, {seeds}{single})"


def seeds_text(seeds: int) -> str:
    return f"{seeds} seed" if seeds == 1 else f"{seeds} seeds"


def signed(points: float) -> str:
    """With its sign, as a minus of the width of a plus, and never -0.00.

    >>> [signed(points) for points in (0.25, -1.0, -0.001)]
    ['+0.25', '−1.00', '+0.00']
    """
    return f"{round(points, 2) + 0.0:+.2f}".replace("-", "−")
