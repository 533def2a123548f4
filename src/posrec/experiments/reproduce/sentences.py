"""What a report says in plain sentences, made from the results by rules; the HTML and the Markdown share it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from posrec.experiments.reproduce.claims import FAILED, HELD, SHORT, UNCLEAR, Answer, counted, listed, signed
from posrec.experiments.reproduce.jobs import minutes_shown
from posrec.experiments.reproduce.paper import METRICS, TITLES, dataset_of
from posrec.experiments.reproduce.run import Results, differs
from posrec.experiments.reproduce.tables import TESTED, Finding, Line, Table

VERDICTS = {HELD: "Held", FAILED: "Did not hold", UNCLEAR: "Unclear"}

METHOD = (
    "Every item is ranked for every test sample; ties count against the target. Figures are means over seeds in "
    "percent, ± the standard deviation over seeds. Differences are tested on R@10 and M@10, paired on the same test "
    "samples, each sample's gain averaged over the seeds. The error of a difference is that over sessions, since the "
    "samples of a session are not independent, and that over seeds, added; p is Student's t with Welch's degrees of "
    "freedom, corrected after Holm over all comparisons of a table, and a difference is called shown when it is below "
    "0.05. Intervals are not corrected. One seed of a trained model can't show anything; counting models draw nothing."
)
MEANING = (
    "Held: every comparison that the claim makes came out so, by more than chance over shoppers and seeds would give. "
    "Did not hold: one of them came out the other way round as surely. Unclear: neither; a difference too small to be "
    "told from chance refutes nothing. Comparable: within half a point of each other, by the whole interval. The "
    "number is the difference that decided, in points of percent."
)
IMPOSSIBLE = (
    "† No ranking has these figures together: MRR@K lies between Recall@K / K and Recall@K, and from K = 5 to 10 it "
    "grows by a tenth to a sixth of what Recall does. The paper's row is shown as printed."
)
NO_NUMBERS = "The paper shows this as a figure without numbers, so there is nothing to set beside ours but its words."
ALIKE = "Mean dot products between positions of sessions of 10 and of 20 clicks, scaled to 0 .. 1:"
NOT_THERE = "The paper has nothing on this dataset to set beside ours."


def nothing_beside(table: Table) -> str:
    """Why the paper's figures are not beside ours."""
    return NO_NUMBERS if table.of_paper else NOT_THERE


def title(results: Results) -> str:
    return "The paper's experiments, run again" + (" (quick run)" if results.quick else "")


def lead(results: Results) -> list[str]:
    """What was run, and what a reader must know before anything else."""
    names = listed(results.title(name) for name in results.datasets)
    done = len(results.outcomes) - len(results.failures)
    sentences = [
        f"{'Everything' if results.experiment == 'all' else results.experiment.capitalize()} of section 5 of "
        "“Exploiting Positional Information for Session-based Recommendation” on "
        f"{names}: {done:,} of {len(results.cells):,} trainings done, up to {counted(results.seeds)} each."
    ]
    if results.quick:
        sentences.append(
            "This is a quick run: tiny models, one epoch, a small simulated shop. It shows that every experiment runs; "
            "it says nothing about the paper."
        )
    elif of_paper := {dataset_of(name) for name in results.datasets} - {None}:
        left = [title for name, title in TITLES.items() if name not in of_paper]
        were = "was" if len(left) == 1 else "were"
        sentences[0] += f" Of the paper's datasets {listed(left)} {were} not run." if left else ""
    if results.failures:
        sentences.append(f"{plural(len(results.failures), 'training')} failed; they are listed at the end.")
    if results.missing:
        sentences.append(f"{plural(results.missing, 'training')} not run yet; the same command goes on with them.")
    return sentences + [sentence for name, data in results.datasets.items() if (sentence := differs(name, data))]


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def nearness(results: Results) -> list[str]:
    """How near the overall table comes to the paper's, a sentence or two a dataset."""
    said = []
    for table in results.tables:
        lines = [line for line in table.lines if line.paper and line.outcomes]
        if table.experiment.name != "overall" or not lines:
            continue
        own = [line for line in lines if line.row.label == "PosRec"]
        shown = [f"{SHORT[metric]} {own[0].mean(metric):.2f} ({signed(own[0].over_paper(metric) or 0.0)})"
                 for metric in METRICS if own]  # fmt: skip
        rest = [line for line in lines if line.row.label != "PosRec" and not line.impossible]
        away = [line.over_paper(metric) or 0.0 for line in rest for metric in METRICS]
        sentence = f"{results.title(table.dataset)}: PosRec has {', '.join(shown)} against the paper's. " if own else ""
        if away:
            above = sum(value > 0 for value in away)
            sentence += (
                f"Of the baselines' {len(away)} figures that are possible, ours are above the paper's in {above}; the "
                f"median difference is {signed(median(away))}."
            )
        said.append(sentence.strip())
    return said


def beside(results: Results) -> list[str]:
    """How what the paper does not have compares, a sentence a table."""
    said = []
    for table in results.tables:
        found: dict[tuple[str, str], list[str]] = {}
        for one in table.findings:
            if table.line(one.second).row.extra:
                sure = "" if one.shown else " (chance can give that)"
                points = f"{signed(one.difference)} in {SHORT[one.metric]}{sure}"
                found.setdefault((one.first, one.second), []).append(points)
        pairs = "; ".join(f"{first} minus {second} is {listed(points)}" for (first, second), points in found.items())
        if pairs:
            said.append(f"{results.title(table.dataset)}, not in the paper: {pairs}.")
    return said


def headline(results: Results) -> str:
    """All answers counted."""
    if not results.answers:
        return "No claim can be answered yet."
    counts = {verdict: sum(one.verdict == verdict for one in results.answers) for verdict in VERDICTS}
    return (
        f"{plural(len(results.answers), 'answer')}, one for each claim, dataset and metric: {counts[HELD]} held, "
        f"{counts[FAILED]} did not hold, {counts[UNCLEAR]} unclear."
    )


def plainly(results: Results) -> list[tuple[str, list[str]]]:
    """(what came of them, the claims): each claim once, with where it did so."""
    by_claim: dict[str, list[Answer]] = {}
    for one in results.answers:
        by_claim.setdefault(one.claim.text, []).append(one)
    groups: dict[str, list[str]] = {"Held": [], "Held in part": [], "Mixed": [], "Did not hold": [], "Unclear": []}
    for text, found in by_claim.items():
        verdicts = {one.verdict for one in found}
        group = (
            "Held" if verdicts == {HELD}
            else "Unclear" if verdicts == {UNCLEAR}
            else "Mixed" if {HELD, FAILED} <= verdicts
            else "Held in part" if HELD in verdicts
            else "Did not hold"
        )  # fmt: skip
        groups[group].append(text if len(verdicts) == 1 else f"{text} ({where(results, found)})")
    return [(outcome, claims) for outcome, claims in groups.items() if claims]


def where(results: Results, found: Sequence[Answer]) -> str:
    """The places of a claim's verdicts: "on Diginetica R@10 and M@10; elsewhere unclear"."""
    places: dict[str, dict[str, list[str]]] = {}
    for one in found:
        if one.verdict != UNCLEAR:
            places.setdefault(one.verdict, {}).setdefault(results.title(one.dataset), []).append(SHORT[one.metric])
    parts = []
    for verdict in sorted(places, reverse=True):
        on = listed(f"{dataset} {listed(metrics)}" for dataset, metrics in places[verdict].items())
        parts.append(f"{verdict} on {on}" if len(places) > 1 else f"on {on}")
    return "; ".join([*parts, *(["elsewhere unclear"] if any(one.verdict == UNCLEAR for one in found) else [])])


def resolution(results: Results) -> list[str]:
    """How small a difference could be seen: below, "unclear" is all that these seeds and sessions can say."""
    said = []
    for dataset in results.datasets:
        for metric in TESTED:
            of = [one for table in results.tables if table.dataset == dataset for one in table.findings
                  if one.metric == metric and one.margin < float("inf")]  # fmt: skip
            seen, unseen = ([abs(one.difference) for one in of if bool(one.shown) == shown] for shown in (True, False))
            if seen and unseen:
                name = f"{results.title(dataset)} {SHORT[metric]}"
                said.append(f"{name}: {min(seen):.2f} and {max(unseen):.2f}")
    if not said:
        return []
    return [
        f"How sure: the smallest difference that was shown, and the largest that was not, in points. {'; '.join(said)}."
    ]


def grouped(results: Results, dataset: str, verdict: str) -> list[tuple[str, list[Answer]]]:
    """The claims with this verdict on a dataset, each with its answers by metric."""
    found: dict[str, list[Answer]] = {}
    for one in results.answers:
        if one.dataset == dataset and one.verdict == verdict:
            found.setdefault(one.claim.text, []).append(one)
    return list(found.items())


def matrix(results: Results) -> tuple[list[tuple[str, str]], list[tuple[str, list[Answer | None]]]]:
    """Columns (dataset, metric), and for each claim the answer in each column or None."""
    columns = list(dict.fromkeys((one.dataset, one.metric) for one in results.answers))
    rows: dict[str, dict[tuple[str, str], Answer]] = {}
    for one in results.answers:
        rows.setdefault(one.claim.text, {})[one.dataset, one.metric] = one
    return columns, [(text, [of.get(column) for column in columns]) for text, of in rows.items()]


def status(line: Line) -> str:
    """Why a row has no figures, or fewer seeds than wanted."""
    if line.failures and not line.outcomes:
        return "failed"
    if not line.outcomes:
        return "not run yet"
    return str(len(line.outcomes)) + (f" of {line.wanted}" if len(line.outcomes) < line.wanted else "")


def origin(results: Results) -> list[tuple[str, str]]:
    """Where the figures come from."""
    machines = Counter(str(one.record["machine"]) for one in results.outcomes.values())
    rows = [
        ("machine", ", ".join(f"{name} ({plural(count, 'training')})" for name, count in machines.items())),
        ("versions", ", ".join(f"{key} {' / '.join(results.records(key))}" for key in ("posrec", "torch", "python"))),
        (
            "time",
            f"{minutes_shown(results.seconds)} summed over {plural(len(results.outcomes), 'training')}; less went "
            f"by where several ran at once{dates(results)}",
        ),
    ]
    for name, data in results.datasets.items():
        rows.append((
            results.title(name),
            f"folder {name}, {len(data.train):,} training samples, {len(data.test):,} test samples in "
            f"{data.test.sessions:,} sessions, {data.train_items:,} items in training, fingerprint {data.fingerprint}",
        ))  # fmt: skip
    return rows


def dates(results: Results) -> str:
    """When they were run, as far as they say."""
    days = sorted({str(one.record["finished"]) for one in results.outcomes.values() if "finished" in one.record})
    return f", {days[0]} to {days[-1]}" if len(days) > 1 else f", {days[0]}" if days else ""


def has_impossible(tables: Iterable[Table]) -> bool:
    return any(line.impossible for table in tables for line in table.lines)


def shown_words(one: Finding) -> str:
    return {1: f"{one.first} is better", -1: f"{one.second} is better", 0: "no difference shown"}[one.shown]
