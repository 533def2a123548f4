"""The sentences of a report, made from the results by rules; the HTML and the Markdown report share them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from posrec.experiments.reproduce.claims import FAILED, HELD, SHORT, UNCLEAR, Answer, joined, seeds_text, signed
from posrec.experiments.reproduce.jobs import duration_text
from posrec.experiments.reproduce.paper import METRICS, TITLES, dataset_of
from posrec.experiments.reproduce.results import Results, sample_count_warning
from posrec.experiments.reproduce.tables import TESTED, Finding, Line, Table
from posrec.wording import plural

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
SIMILARITIES = "Mean dot products between positions of sessions of 10 and of 20 clicks, scaled to 0 .. 1:"
NOT_IN_PAPER = "The paper has nothing on this dataset to set beside ours."


def why_no_paper_figures(table: Table) -> str:
    return NO_NUMBERS if table.paper_dataset else NOT_IN_PAPER


def title(results: Results) -> str:
    return "The paper's experiments, run again" + (" (quick run)" if results.quick else "")


def introduction(results: Results) -> list[str]:
    """What was run, and what a reader must know before reading on."""
    names = joined(results.title(name) for name in results.datasets)
    done = len(results.job_results) - len(results.failures)
    sentences = [
        f"{'Everything' if results.experiment == 'all' else results.experiment.capitalize()} of section 5 of "
        "“Exploiting Positional Information for Session-based Recommendation” on "
        f"{names}: {done:,} of {len(results.jobs):,} trainings done, up to {seeds_text(results.seeds)} each."
    ]
    if results.quick:
        sentences.append(
            "This is a quick run: tiny models, one epoch, a small simulated shop. It shows that every experiment runs; "
            "it says nothing about the paper."
        )
    elif of_the_paper := {dataset_of(name) for name in results.datasets} - {None}:
        left = [title for name, title in TITLES.items() if name not in of_the_paper]
        were = "was" if len(left) == 1 else "were"
        sentences[0] += f" Of the paper's datasets {joined(left)} {were} not run." if left else ""
    if results.failures:
        sentences.append(f"{plural(len(results.failures), 'training')} failed; they are listed at the end.")
    if results.missing:
        sentences.append(f"{plural(results.missing, 'training')} not run yet; the same command continues with them.")
    return sentences + [
        sentence for name, data in results.datasets.items() if (sentence := sample_count_warning(name, data))
    ]


def distance_to_paper(results: Results) -> list[str]:
    """How near the overall table comes to the paper's, one or two sentences for each dataset."""
    sentences = []
    for table in results.tables:
        lines = [line for line in table.lines if line.paper and line.results]
        if table.experiment.name != "overall" or not lines:
            continue
        own = [line for line in lines if line.row.label == "PosRec"]
        shown = [f"{SHORT[metric]} {own[0].mean(metric):.2f} ({signed(own[0].above_paper(metric) or 0.0)})"
                 for metric in METRICS if own]  # fmt: skip
        rest = [line for line in lines if line.row.label != "PosRec" and not line.impossible]
        away = [line.above_paper(metric) or 0.0 for line in rest for metric in METRICS]
        sentence = f"{results.title(table.dataset)}: PosRec has {', '.join(shown)} against the paper's. " if own else ""
        if away:
            above = sum(value > 0 for value in away)
            sentence += (
                f"Of the baselines' {len(away)} figures that are possible, ours are above the paper's in {above}; the "
                f"median difference is {signed(median(away))}."
            )
        sentences.append(sentence.strip())
    return sentences


def extra_rows(results: Results) -> list[str]:
    """How the rows that are not in the paper compare, a sentence for each table."""
    sentences = []
    for table in results.tables:
        found: dict[tuple[str, str], list[str]] = {}
        for one in table.findings:
            if table.line(one.second).row.extra:
                sure = "" if one.direction else " (chance can give that)"
                points = f"{signed(one.difference)} in {SHORT[one.metric]}{sure}"
                found.setdefault((one.first, one.second), []).append(points)
        pairs = "; ".join(f"{first} minus {second} is {joined(points)}" for (first, second), points in found.items())
        if pairs:
            sentences.append(f"{results.title(table.dataset)}, not in the paper: {pairs}.")
    return sentences


def headline(results: Results) -> str:
    """How many answers there are of each verdict."""
    if not results.answers:
        return "No claim can be answered yet."
    counts = {verdict: sum(one.verdict == verdict for one in results.answers) for verdict in VERDICTS}
    return (
        f"{plural(len(results.answers), 'answer')}, one for each claim, dataset and metric: {counts[HELD]} held, "
        f"{counts[FAILED]} did not hold, {counts[UNCLEAR]} unclear."
    )


def claims_by_outcome(results: Results) -> list[tuple[str, list[str]]]:
    """(outcome, claims): each claim once, with the datasets and metrics where it held or failed if not everywhere."""
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
        groups[group].append(text if len(verdicts) == 1 else f"{text} ({verdict_places(results, found)})")
    return [(outcome, claims) for outcome, claims in groups.items() if claims]


def verdict_places(results: Results, found: Sequence[Answer]) -> str:
    """Where a claim has which verdict: "on Diginetica R@10 and M@10; elsewhere unclear"."""
    places: dict[str, dict[str, list[str]]] = {}
    for one in found:
        if one.verdict != UNCLEAR:
            places.setdefault(one.verdict, {}).setdefault(results.title(one.dataset), []).append(SHORT[one.metric])
    parts = []
    for verdict in sorted(places, reverse=True):
        on = joined(f"{dataset} {joined(metrics)}" for dataset, metrics in places[verdict].items())
        parts.append(f"{verdict} on {on}" if len(places) > 1 else f"on {on}")
    return "; ".join([*parts, *(["elsewhere unclear"] if any(one.verdict == UNCLEAR for one in found) else [])])


def smallest_differences(results: Results) -> list[str]:
    """How small a difference can be shown with these seeds and sessions; smaller ones are unclear."""
    found = []
    for dataset in results.datasets:
        for metric in TESTED:
            findings = [one for table in results.tables if table.dataset == dataset for one in table.findings
                        if one.metric == metric and one.margin < float("inf")]  # fmt: skip
            shown, not_shown = ([abs(one.difference) for one in findings if bool(one.direction) == is_shown]
                                for is_shown in (True, False))  # fmt: skip
            if shown and not_shown:
                name = f"{results.title(dataset)} {SHORT[metric]}"
                found.append(f"{name}: {min(shown):.2f} and {max(not_shown):.2f}")
    if not found:
        return []
    about = "How sure: the smallest difference that was shown, and the largest that was not, in points."
    return [f"{about} {'; '.join(found)}."]


def claims_with_verdict(results: Results, dataset: str, verdict: str) -> list[tuple[str, list[Answer]]]:
    """The claims with this verdict on a dataset, each with its answers by metric."""
    found: dict[str, list[Answer]] = {}
    for one in results.answers:
        if one.dataset == dataset and one.verdict == verdict:
            found.setdefault(one.claim.text, []).append(one)
    return list(found.items())


def claims_matrix(results: Results) -> tuple[list[tuple[str, str]], list[tuple[str, list[Answer | None]]]]:
    """The columns (dataset, metric), and for each claim its answer in each column, or None."""
    columns = list(dict.fromkeys((one.dataset, one.metric) for one in results.answers))
    rows: dict[str, dict[tuple[str, str], Answer]] = {}
    for one in results.answers:
        rows.setdefault(one.claim.text, {})[one.dataset, one.metric] = one
    return columns, [(text, [answers.get(column) for column in columns]) for text, answers in rows.items()]


def seeds_status(line: Line) -> str:
    """How many seeds a row has, or why it has none."""
    if line.failures and not line.results:
        return "failed"
    if not line.results:
        return "not run yet"
    return str(len(line.results)) + (f" of {line.wanted}" if len(line.results) < line.wanted else "")


def provenance(results: Results) -> list[tuple[str, str]]:
    """Where the figures come from: (name, text)."""
    machines = Counter(str(one.record["machine"]) for one in results.job_results.values())
    rows = [
        ("machine", ", ".join(f"{name} ({plural(count, 'training')})" for name, count in machines.items())),
        ("versions", ", ".join(f"{key} {' / '.join(results.records(key))}" for key in ("posrec", "torch", "python"))),
        (
            "time",
            f"{duration_text(results.seconds)} summed over {plural(len(results.job_results), 'training')}; less went "
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
    """The first and the last day of the trainings, where their records have it."""
    days = sorted({str(one.record["finished"]) for one in results.job_results.values() if "finished" in one.record})
    return f", {days[0]} to {days[-1]}" if len(days) > 1 else f", {days[0]}" if days else ""


def has_impossible(tables: Iterable[Table]) -> bool:
    return any(line.impossible for table in tables for line in table.lines)


def verdict_text(finding: Finding) -> str:
    better = {1: finding.first, -1: finding.second}.get(finding.direction)
    return f"{better} is better" if better else "no difference shown"
