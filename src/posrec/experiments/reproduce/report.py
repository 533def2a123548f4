"""The report on an experiment: report.md, made from summary.json alone, and the encodings drawn."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from posrec.errors import plural
from posrec.experiments.encoding_figures import figures
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.reproduce.claims import FAILED, HELD, UNCLEAR
from posrec.experiments.reproduce.grid import EXPERIMENTS, FIGURES
from posrec.experiments.reproduce.paper import (
    METRICS,
    SAMPLES,
    TITLES,
    dataset_of,
    impossible,
)
from posrec.experiments.reproduce.tables import TESTED
from posrec.io import write_json, write_text

PICTURES = "figures"
NAMES = {"recall@5": "R@5", "recall@10": "R@10", "mrr@5": "M@5", "mrr@10": "M@10"}
CLAIM_COLUMNS = (
    "claim",
    "dataset",
    "metric",
    "verdict",
    "the comparison that decided",
    "difference",
    "p",
)
ENCODING_COLUMNS = (
    "encoding",
    "learned on",
    "same position from the first click",
    "same from the last",
    "others",
)
Summary = dict[str, Any]

METHOD = (
    "Every item is ranked for every test sample; ties count against the target. Figures are means "
    "over seeds in percent, ±\nthe standard deviation over seeds. Differences are in points of "
    "percent, ± half the 95 % interval, from the same test\nsamples; p is corrected after Holm "
    "over all comparisons of a table, and a difference is shown if it is below 0.05. A\nclaim held "
    "if every comparison that it makes was shown, did not hold if one was shown the other way "
    "round, and is\nunclear otherwise. docs/protocol.md has the details."
)
IMPOSSIBLE = (
    "† No ranking has these figures together: MRR@K lies between Recall@K / K and Recall@K, and "
    "from K = 5 to 10 it grows by\na tenth to a sixth of what Recall does. The paper's row is "
    "shown as printed."
)


def write_report(
    summary: Summary, learned: Sequence[TrainedEncoding], out: Path
) -> None:
    """The summary, the report, and for the experiment `figures` the encodings drawn."""
    if draws_encodings(summary):
        summary["figures"] = []
        (out / PICTURES).mkdir(exist_ok=True)
        for name, figure in figures(100, learned):
            path = f"{PICTURES}/{name}.png"
            figure.savefig(out / path, dpi=80, metadata={"Software": None})
            summary["figures"].append(path)
    write_json(out / "summary.json", summary)
    write_text(out / "report.md", markdown_report(summary))


def draws_encodings(summary: Summary) -> bool:
    return summary["experiment"] in (FIGURES.name, "all")


def dataset_title(dataset: str) -> str:
    return TITLES.get(dataset_of(dataset) or "", dataset)


def introduction(summary: Summary) -> list[str]:
    names = ", ".join(map(dataset_title, summary["datasets"]))
    total = summary["jobs"]["wanted"]
    missing = summary["jobs"]["missing"]
    failed = len(summary["failed"])
    lines = [
        "Section 5 of “Exploiting Positional Information for Session-based Recommendation”, "
        f"{summary['experiment']}, on {names}: {total - missing - failed:,} of {total:,} "
        f"trainings done, up to {plural(summary['seeds'], 'seed')} each."
    ]
    if summary["quick"]:
        lines.append(
            "This is a quick run of tiny models on a simulated shop: it says nothing about the "
            "paper."
        )
    if failed:
        trainings = plural(failed, "training")
        lines.append(f"{trainings} failed; they are listed at the end.")
    if missing:
        trainings = plural(missing, "training")
        lines.append(f"{trainings} not run yet; the same command continues with them.")
    for name, data in summary["datasets"].items():
        samples = (data["train_samples"], data["test_samples"])
        expected = SAMPLES.get(dataset_of(name) or "", samples)
        if expected != samples:
            lines.append(
                f"{name} has {samples[0]:,} training and {samples[1]:,} test samples where the "
                f"paper has {expected[0]:,} and {expected[1]:,}: its figures don't compare."
            )
    return lines


def verdict_counts(summary: Summary) -> str:
    counts = Counter(claim["verdict"] for claim in summary["claims"])
    listed = [f"{counts[verdict]} {verdict}" for verdict in (HELD, FAILED, UNCLEAR)]
    return (
        "Answers to the paper's claims, one for each claim, dataset and metric: "
        f"{', '.join(listed)}."
    )


def markdown_report(summary: Summary) -> str:
    parts = ["# The paper's experiments, run again", *introduction(summary), METHOD]
    tables = summary["tables"]
    if tables:
        parts += ["## Which claims of the paper held", verdict_counts(summary)]
        rows = [claim_cells(claim, tables) for claim in summary["claims"]]
        parts.append(markdown_table(CLAIM_COLUMNS, rows))
    for experiment in EXPERIMENTS.values():
        own_tables = [one for one in tables if one["experiment"] == experiment.name]
        if own_tables:
            parts += [f"## {experiment.title}", experiment.about]
        for table in own_tables:
            parts += table_parts(table)
    if draws_encodings(summary):
        parts += encoding_parts(summary)
    parts += ["## Where this comes from", markdown_list(provenance(summary))]
    if summary["failed"]:
        failed = [f"{name}: {error}" for name, error in summary["failed"].items()]
        parts += ["### Trainings that failed", markdown_list(failed)]
    return "\n\n".join(parts) + "\n"


def markdown_list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def claim_cells(claim: dict[str, Any], tables: Sequence[dict[str, Any]]) -> list[str]:
    (table,) = (
        table
        for table in tables
        if table["experiment"] == claim["experiment"]
        and table["dataset"] == claim["dataset"]
    )
    finding = claim["deciding"]
    metric = claim["metric"]
    figures = [
        f"{label}: {table['rows'][label][metric][0]:.2f}"
        for label in (finding["first"], finding["second"])
    ]
    return [
        claim["claim"],
        dataset_title(claim["dataset"]),
        NAMES[metric],
        claim["verdict"],
        ", ".join(figures),
        *difference_cells(finding),
    ]


def difference_cells(finding: dict[str, Any]) -> list[str]:
    margin = "?" if finding["margin"] is None else f"{finding['margin']:.2f}"
    p = "< 0.001" if finding["p"] < 0.001 else f"{finding['p']:.3f}"
    return [f"{signed(finding['difference'])} ± {margin}", p]


def signed(points: float) -> str:
    """With its sign, and never -0.00.

    >>> [signed(points) for points in (0.25, -1.0, -0.001)]
    ['+0.25', '-1.00', '+0.00']
    """
    return f"{round(points, 2) + 0.0:+.2f}"


def table_parts(table: dict[str, Any]) -> list[str]:
    papers = [row["paper"] for row in table["rows"].values()]
    compares = any(papers)
    head = ["%", "seeds"]
    for metric in METRICS:
        head.append(NAMES[metric])
        if compares:
            head += ["paper", "difference"]
    rows = [row_cells(label, row, compares) for label, row in table["rows"].items()]
    parts = [f"### {dataset_title(table['dataset'])}", markdown_table(head, rows)]
    if any(impossible(paper) for paper in papers):
        parts.append(IMPOSSIBLE)
    if table["findings"]:
        by_pair: dict[str, list[str]] = {}
        for finding in table["findings"]:
            pair = f"{finding['first']} - {finding['second']}"
            by_pair.setdefault(pair, [pair]).extend(difference_cells(finding))
        head = ["comparison"]
        for metric in TESTED:
            head += [NAMES[metric], "p"]
        parts.append(markdown_table(head, by_pair.values()))
    return parts


def row_cells(label: str, row: dict[str, Any], compares: bool) -> list[str]:
    seeds = row["seeds"]
    planned = row["wanted"]
    if not seeds:
        done = "failed" if row["failed"] else "not run yet"
    else:
        done = str(planned) if seeds == planned else f"{seeds} of {planned}"
    cells = [label, done]
    mark = "†" if impossible(row["paper"]) else ""
    for metric in METRICS:
        ours = row.get(metric, [])
        cells.append(" ± ".join(f"{figure:.2f}" for figure in ours))
        if compares:
            printed = row["paper"].get(metric)
            cells.append(f"{printed[0]:.2f}{mark}" if printed else "")
            cells.append(signed(ours[0] - printed[0]) if printed and ours else "")
    return cells


def encoding_parts(summary: Summary) -> list[str]:
    """Section 5.5: the fixed encodings, and what PosRec learned on each dataset, seed 0."""
    rows = []
    for learned in summary["encodings"]:
        similarities = [f"{value:.2f}" for value in learned["similarity"]]
        rows.append([learned["encoding"].upper(), learned["run"], *similarities])
    parts = [
        f"## {FIGURES.title}",
        FIGURES.about,
        "Mean dot products between positions of sessions of 10 and of 20 clicks, scaled to "
        "0 .. 1:",
        markdown_table(ENCODING_COLUMNS, rows),
    ]
    for name in summary["figures"]:
        parts.append(f"![{Path(name).stem.replace('-', ' ')}]({name})")
    return parts


def provenance(summary: Summary) -> list[str]:
    lines = []
    for key, values in summary["made_by"].items():
        counted = [
            f"{value} ({plural(count, 'training')})" for value, count in values.items()
        ]
        lines.append(f"{key}: {', '.join(counted)}")
    for name, data in summary["datasets"].items():
        lines.append(
            f"{dataset_title(name)}: folder {name}, {data['train_samples']:,} training samples, "
            f"{data['test_samples']:,} test samples in {data['test_sessions']:,} sessions, "
            f"{data['train_items']:,} items in training, fingerprint {data['fingerprint']}"
        )
    return lines
