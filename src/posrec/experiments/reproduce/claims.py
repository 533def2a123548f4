"""The claims of section 5 as data, and the rules by which our tables answer them.

A claim is a list of orders "this row is better than that one". It held where every order was shown, did not hold where
one was shown the other way round, and is unclear between: no difference that chance could not make. Where the paper
says "comparable", rows have to be within half a point of each other, by the whole of the interval.
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
        """The difference that decided, and against which row where there are several."""
        one = decisive(self.claim, self.findings)
        return signed(one.difference) + (f" {compared(self.findings)(one)}" if len(self.claim.pairs) > 1 else "")


def others(experiment: str, *without: str) -> list[str]:
    """The paper's rows of a table but some."""
    return [row.label for row in EXPERIMENTS[experiment].rows if not row.extra and row.label not in without]


def against(best: str, labels: Sequence[str]) -> list[tuple[str, str]]:
    return [(best, label) for label in labels]


def comparable(text: str, pairs: Pairs) -> Claim:
    return Claim("encodings", text, pairs, within=COMPARABLE)


COMPARABLE = 0.5  # points
SHALLOW = ("POP", "S-POP", "Item-KNN", "BPR-MF", "FPMC")
CLAIMS = (
    Claim("overall", "PosRec is better than every baseline", against("PosRec", others("overall", "PosRec"))),
    Claim("overall", "S-POP is better than POP", [("S-POP", "POP")]),
    Claim("overall", "Item-KNN is the best of the traditional methods",
          against("Item-KNN", [label for label in SHALLOW if label != "Item-KNN"])),
    Claim("overall", "GRU4REC is better than the traditional methods", against("GRU4REC", SHALLOW)),
    Claim("overall", "NARM and STAMP are better than GRU4REC", [("NARM", "GRU4REC"), ("STAMP", "GRU4REC")]),
    Claim("overall", "STAMP is better than NARM", [("STAMP", "NARM")]),
    Claim("overall", "SASRec is slightly better than STAMP", [("SASRec", "STAMP")]),
    Claim("encodings", "LDPE is better than no encoding", [("LDPE", "none")]),
    Claim("encodings", "LDPE is the best encoding in PosRec", against("LDPE", others("encodings", "LDPE", "none"))),
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
            against(f"λ2 = {best:g}", others("sensitivity", f"λ2 = {best:g}")),
            datasets=tuple(name for name, value in BEST_LAMBDA2.items() if value == best))
      for best, where in ((0.5, "Yoochoose"), (1.0, "Diginetica"))),
)  # fmt: skip

# Tested beside the claims: rows that the paper does not have.
MORE = {"overall": [("PosRec", "VSKNN"), ("PosRec", "STAN")], "encodings": [("LDPE", "RPE")]}


def pairs_of(experiment: str, of_paper: str | None) -> list[tuple[str, str]]:
    """Every pair that is tested in a table, once."""
    pairs = [pair for claim in CLAIMS if claim.experiment == experiment and fits(claim, of_paper)
             for pair in claim.pairs]  # fmt: skip
    return list(dict.fromkeys(pairs + MORE.get(experiment, [])))


def fits(claim: Claim, of_paper: str | None) -> bool:
    return claim.datasets is None or of_paper in claim.datasets


def answers(tables: Sequence[Table]) -> list[Answer]:
    """Every claim in every table and metric that it speaks of, as far as there is something to say."""
    found = []
    for claim in CLAIMS:
        for table in tables:
            if table.experiment.name == claim.experiment and fits(claim, table.of_paper):
                found += [answer for metric in claim.metrics if (answer := judge(claim, table, metric))]
    return found


def judge(claim: Claim, table: Table, metric: str) -> Answer | None:
    of = {(one.first, one.second): one for one in table.findings if one.metric == metric}
    tested = tuple(of[pair] for pair in claim.pairs if pair in of)
    if not tested:
        return None
    if any(against_it(claim, one) for one in tested):
        verdict = FAILED
    else:
        whole = len(tested) == len(claim.pairs)
        verdict = HELD if whole and all(for_it(claim, one) for one in tested) else UNCLEAR
    return Answer(claim, table.dataset, metric, verdict, evidence(claim, tested), tested)


def for_it(claim: Claim, one: Finding) -> bool:
    """Whether a comparison bears the claim out."""
    return one.shown > 0 if claim.within is None else abs(one.difference) + one.margin <= claim.within


def against_it(claim: Claim, one: Finding) -> bool:
    return one.shown < 0 if claim.within is None else abs(one.difference) - one.margin > claim.within


def decisive(claim: Claim, tested: Sequence[Finding]) -> Finding:
    """The largest loss; where nothing is lost the least of what is undecided, else the least gain."""
    if claim.within is not None:
        return max(tested, key=lambda one: abs(one.difference))
    lost, undecided = [one for one in tested if one.shown < 0], [one for one in tested if not one.shown]
    return min(lost or undecided or tested, key=lambda one: one.difference)


def compared(tested: Sequence[Finding]) -> Callable[[Finding], str]:
    """The name of a comparison among several: of whom one row is better than, or of whom is better than one row."""
    one_best = len({one.first for one in tested}) == 1
    return lambda one: one.second if one_best else one.first


def evidence(claim: Claim, tested: Sequence[Finding]) -> str:
    """What decided it, in a sentence."""
    missing = len(claim.pairs) - len(tested)
    note = f"; {missing} of {len(claim.pairs)} comparisons are not run yet" if missing else ""
    one, name = decisive(claim, tested), compared(tested)
    closest = told(one)
    if claim.within is not None:
        return f"{closest} at the widest, give or take {one.margin:.2f}{note}"
    if len(claim.pairs) == 1:
        return closest + note
    one_best = len({one.first for one in tested}) == 1  # else one row is worse than several
    word = "against" if one_best else "for"
    count = sum(one.shown > 0 for one in tested)
    shown = f"shown {word} {count or 'none'} of {len(tested)}"
    if lost := [one for one in tested if one.shown < 0]:
        names = listed(map(name, lost))
        other = f"{names} {'is' if len(lost) == 1 else 'are'} better" if one_best else (
            f"{lost[0].second} is better than {names}"
        )  # fmt: skip
        return f"{other}: {closest}; {shown}{note}"
    if undecided := [one for one in tested if not one.shown]:
        left = f", not {word} {listed(map(name, undecided))}" if count else ""
        return f"{shown}{left}: {closest}{note}"
    return f"{closest} at the closest{note}"


def listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def told(one: Finding) -> str:
    """A finding in words: the difference, how sure, on how many seeds."""
    seeds = f"{one.seeds[0]} and {one.seeds[1]} seeds" if one.seeds[0] != one.seeds[1] else counted(one.seeds[0])
    steady = "; one seed can't say how steady it is" if one.margin == float("inf") else ""
    points = f"{abs(one.difference):.2f}"
    place = "level with" if points == "0.00" else f"{points} {'above' if one.difference > 0 else 'below'}"
    return f"{one.first} is {place} {one.second} ({one.p_shown}, {seeds}{steady})"


def counted(seeds: int) -> str:
    return f"{seeds} seed" if seeds == 1 else f"{seeds} seeds"


def signed(points: float) -> str:
    """With its sign, a minus as wide as a plus, but no -0.00.

    >>> [signed(points) for points in (0.25, -1.0, -0.001)]
    ['+0.25', '−1.00', '+0.00']
    """
    return f"{round(points, 2) + 0.0:+.2f}".replace("-", "−")
