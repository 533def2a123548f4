"""The report on an experiment's results: Markdown with figures beside it, and the same numbers as JSON for programs."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posrec.data.dataset import PreparedDataset
from posrec.errors import plural
from posrec.experiments.encoding_figures import figures_by_name
from posrec.experiments.reproduce.claims import FAILED, HELD, UNCLEAR, Answer
from posrec.experiments.reproduce.figures import draw_table, learned_encodings, mean_similarities, write_png
from posrec.experiments.reproduce.grid import EXPERIMENTS, FIGURES
from posrec.experiments.reproduce.jobs import Job, JobResult
from posrec.experiments.reproduce.paper import METRICS, SAMPLES, TITLES, dataset_of, impossible
from posrec.experiments.reproduce.tables import TESTED, Finding, Line, Table
from posrec.io import write_json, write_text

REPORT, SUMMARY, PICTURES = "report.md", "summary.json", "figures"
NAMES = {"recall@5": "R@5", "recall@10": "R@10", "mrr@5": "M@5", "mrr@10": "M@10"}

METHOD = """\
Every item is ranked for every test sample; ties count against the target. Figures are means over seeds in percent, ±
the standard deviation over seeds. Differences are in points of percent, ± half the 95 % interval, from the same test
samples; p is corrected after Holm over all comparisons of a table, and a difference is shown if it is below 0.05. A
claim held if every comparison that it makes was shown, did not hold if one was shown the other way round, and is
unclear otherwise. docs/protocol.md has the details."""
IMPOSSIBLE = """\
† No ranking has these figures together: MRR@K lies between Recall@K / K and Recall@K, and from K = 5 to 10 it grows by
a tenth to a sixth of what Recall does. The paper's row is shown as printed."""


@dataclass(frozen=True)
class Results:
    experiment: str
    datasets: Mapping[str, PreparedDataset]  # by the folder's name
    tables: list[Table]
    answers: list[Answer]
    job_results: dict[str, JobResult]  # by the job's name
    jobs: Sequence[Job]  # those that the experiment asks for
    seeds: int
    shared_settings: dict[str, Any]  # of a quick run; otherwise none

    @property
    def failures(self) -> list[JobResult]:
        return [result for result in self.job_results.values() if result.error]

    @property
    def missing(self) -> int:
        return len(self.jobs) - len(self.job_results)

    def records(self, key: str) -> Counter[str]:
        """How many jobs have each value of a key in their records."""
        return Counter(str(result.record.get(key, "")) for result in self.job_results.values())


def write_report(results: Results, out: Path) -> None:
    write_text(out / REPORT, markdown_report(results, out))
    write_json(out / SUMMARY, summary(results))


def dataset_title(dataset: str) -> str:
    """The paper's name of a dataset; the folder's name for any other."""
    return TITLES.get(dataset_of(dataset) or "", dataset)


def introduction(results: Results) -> list[str]:
    """What was run, and what a reader must know before reading on."""
    names = ", ".join(map(dataset_title, results.datasets))
    done = len(results.job_results) - len(results.failures)
    lines = [
        f"Section 5 of “Exploiting Positional Information for Session-based Recommendation”, {results.experiment}, on "
        f"{names}: {done:,} of {len(results.jobs):,} trainings done, up to {plural(results.seeds, 'seed')} each."
    ]
    if results.shared_settings:
        lines.append("This is a quick run of tiny models on a simulated shop: it says nothing about the paper.")
    if results.failures:
        lines.append(f"{plural(len(results.failures), 'training')} failed; they are listed at the end.")
    if results.missing:
        lines.append(f"{plural(results.missing, 'training')} not run yet; the same command continues with them.")
    for name, data in results.datasets.items():
        train, test = expected = SAMPLES.get(dataset_of(name) or "", (len(data.train), len(data.test)))
        if expected != (len(data.train), len(data.test)):
            lines.append(
                f"{name} has {len(data.train):,} training and {len(data.test):,} test samples where the paper has "
                f"{train:,} and {test:,}: its figures don't compare."
            )
    return lines


def verdict_counts(answers: Sequence[Answer]) -> str:
    counts = Counter(answer.verdict for answer in answers)
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (HELD, FAILED, UNCLEAR))
    return f"Answers to the paper's claims, one for each claim, dataset and metric: {listed}."


def markdown_report(results: Results, out: Path) -> str:
    """The text of the report; its figures are drawn into `out`."""
    parts = ["# The paper's experiments, run again", *introduction(results), METHOD]
    if results.tables:
        head = ("claim", "dataset", "metric", "verdict", "the comparison that decided", "difference", "p")
        parts += ["## Which claims of the paper held", verdict_counts(results.answers)]
        parts += [markdown_table(head, (claim_cells(answer, results.tables) for answer in results.answers))]
    for experiment in EXPERIMENTS.values():
        tables = [table for table in results.tables if table.experiment is experiment]
        parts += [f"## {experiment.title}", experiment.about] if tables else []
        for table in tables:
            parts += table_parts(table, out)
    if results.experiment in (FIGURES.name, "all"):
        parts += encoding_parts(results, out)
    parts += ["## Where this comes from", "\n".join(f"- {line}" for line in provenance(results))]
    if results.failures:
        failed = [f"- {result.job.name}: {result.error}" for result in results.failures]
        parts += ["### Trainings that failed", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def claim_cells(answer: Answer, tables: Sequence[Table]) -> list[str]:
    table = next(
        one for one in tables if (one.experiment.name, one.dataset) == (answer.claim.experiment, answer.dataset)
    )
    finding = answer.deciding
    figures = [f"{label}: {table.line(label).mean(answer.metric):.2f}" for label in (finding.first, finding.second)]
    place = [dataset_title(answer.dataset), NAMES[answer.metric]]
    return [answer.claim.text, *place, answer.verdict, ", ".join(figures), *difference_cells(finding)]


def difference_cells(finding: Finding) -> list[str]:
    margin = "?" if math.isinf(finding.margin) else f"{finding.margin:.2f}"
    return [f"{signed(finding.difference)} ± {margin}", "< 0.001" if finding.p < 0.001 else f"{finding.p:.3f}"]


def signed(points: float) -> str:
    """With its sign, and never -0.00.

    >>> [signed(points) for points in (0.25, -1.0, -0.001)]
    ['+0.25', '-1.00', '+0.00']
    """
    return f"{round(points, 2) + 0.0:+.2f}"


def table_parts(table: Table, out: Path) -> list[str]:
    compares = any(line.paper for line in table.lines)
    head = ["%", "seeds"]
    for metric in METRICS:
        head += [NAMES[metric], "paper", "difference"] if compares else [NAMES[metric]]
    rows = [row_cells(line, compares) for line in table.lines]
    parts = [f"### {dataset_title(table.dataset)}", markdown_table(head, rows)]
    if any(impossible(line.paper) for line in table.lines):
        parts.append(IMPOSSIBLE)
    picture = f"{PICTURES}/{table.experiment.name}-{table.dataset}.png"
    if draw_table(table, out / picture):
        rings = ", rings: the paper's figures" if compares else ""
        parts.append(f"![Points: our means, with the deviation over seeds{rings}]({picture})")
    if table.findings:
        by_pair: dict[str, list[str]] = {}
        for one in table.findings:
            by_pair.setdefault(f"{one.first} - {one.second}", []).extend(difference_cells(one))
        head = ["comparison", *(cell for metric in TESTED for cell in (NAMES[metric], "p"))]
        parts.append(markdown_table(head, ([pair, *cells] for pair, cells in by_pair.items())))
    return parts


def row_cells(line: Line, compares: bool) -> list[str]:
    count = f"{len(line.results)} of {line.wanted}" if len(line.results) < line.wanted else str(line.wanted)
    cells = [line.row.label, count if line.results else "failed" if line.failures else "not run yet"]
    mark = "†" if impossible(line.paper) else ""
    for metric in METRICS:
        deviation = line.deviation(metric)
        ours = f"{line.mean(metric):.2f}" if line.results else ""
        cells.append(ours if deviation is None else f"{ours} ± {deviation:.2f}")
        if compares:
            printed = line.paper.get(metric)
            cells.append(f"{printed[0]:.2f}{mark}" if printed else "")
            cells.append(signed(line.mean(metric) - printed[0]) if printed and line.results else "")
    return cells


def encoding_parts(results: Results, out: Path) -> list[str]:
    """Section 5.5: the fixed encodings, and what PosRec learned on each dataset, seed 0."""
    learned = [
        one
        for name in results.datasets
        for one in learned_encodings(name, results.job_results, results.shared_settings)
    ]
    head = ("encoding", "learned on", "same position from the first click", "same from the last", "others")
    rows = [
        [one.name.upper(), str(one.run), *(f"{value:.2f}" for value in mean_similarities(one.scheme))]
        for one in learned
    ]
    figures = figures_by_name(100, learned)
    for name, figure in figures.items():
        write_png(figure(), out / PICTURES / f"{name}.png")
    return [
        f"## {FIGURES.title}",
        FIGURES.about,
        "Mean dot products between positions of sessions of 10 and of 20 clicks, scaled to 0 .. 1:",
        markdown_table(head, rows),
        *(f"![{name.replace('-', ' ')}]({PICTURES}/{name}.png)" for name in figures),
    ]


def provenance(results: Results) -> list[str]:
    lines = []
    for key in ("machine", "posrec", "torch", "python", "finished"):
        values = [f"{value} ({plural(count, 'training')})" for value, count in results.records(key).items()]
        lines.append(f"{key}: {', '.join(values)}")
    for name, data in results.datasets.items():
        lines.append(
            f"{dataset_title(name)}: folder {name}, {len(data.train):,} training samples, {len(data.test):,} test "
            f"samples in {data.test.sessions:,} sessions, {data.train_items:,} items in training, fingerprint "
            f"{data.fingerprint}"
        )
    return lines


def summary(results: Results) -> dict[str, Any]:
    """The report's numbers: tables, tested differences, answers, and where they come from."""
    return {
        "experiment": results.experiment,
        "seeds": results.seeds,
        "quick": bool(results.shared_settings),
        "datasets": {name: data.fingerprint for name, data in results.datasets.items()},
        "machines": sorted(results.records("machine")),
        "versions": {key: sorted(results.records(key)) for key in ("posrec", "torch", "python")},
        "seconds": round(sum(result.record["total_seconds"] for result in results.job_results.values()), 1),
        "jobs": {"wanted": len(results.jobs), "missing": results.missing},
        "failed": {result.job.name: result.error for result in results.failures},
        "tables": [
            {
                "experiment": table.experiment.name,
                "dataset": table.dataset,
                "rows": {line.row.label: line_summary(line) for line in table.lines},
                "findings": [finding_summary(one) for one in table.findings],
            }
            for table in results.tables
        ],
        "claims": [
            {
                "claim": answer.claim.text,
                "dataset": answer.dataset,
                "metric": answer.metric,
                "verdict": answer.verdict,
                "deciding": finding_summary(answer.deciding),
            }
            for answer in results.answers
        ],
    }


def line_summary(line: Line) -> dict[str, Any]:
    figures = {}
    for metric in line.results[0].metrics if line.results else ():
        deviation = line.deviation(metric)
        figures[metric] = [round(line.mean(metric), 2), *([] if deviation is None else [round(deviation, 2)])]
    paper = {"paper": {name: list(figure) for name, figure in line.paper.items()}} if line.results else {}
    return {"seeds": len(line.results), **figures, **paper}


def finding_summary(finding: Finding) -> dict[str, Any]:
    """JSON has no infinity: the margin of a single seed, which is unknown, is null."""
    return {**asdict(finding), "margin": None if math.isinf(finding.margin) else finding.margin}
