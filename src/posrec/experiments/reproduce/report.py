"""The report on an experiment: report.md, made from summary.json alone, and the encodings drawn."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posrec.errors import plural
from posrec.experiments.encoding_figures import figures
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.rendering import render
from posrec.experiments.reproduce.claims import FAILED, HELD, UNCLEAR
from posrec.experiments.reproduce.grid import EXPERIMENTS, FIGURES
from posrec.experiments.reproduce.paper import DATASETS, METRICS, dataset_of, impossible
from posrec.io import write_json, write_text

NAMES = {"recall@5": "R@5", "recall@10": "R@10", "mrr@5": "M@5", "mrr@10": "M@10"}
Table = dict[str, Any]
Summary = dict[str, Any]


def write_report(
    summary: Summary, learned: Sequence[TrainedEncoding], out: Path
) -> None:
    if summary["experiment"] in (FIGURES.name, "all"):
        summary["figures"] = []
        (out / "figures").mkdir(exist_ok=True)
        for name, figure in figures(100, learned):
            path = f"figures/{name}.png"
            figure.savefig(out / path, dpi=80, metadata={"Software": None})
            summary["figures"].append(path)
    write_json(out / "summary.json", summary)
    write_text(out / "report.md", markdown_report(summary))


def dataset_title(dataset: str) -> str:
    paper_dataset = dataset_of(dataset)
    return DATASETS[paper_dataset]["title"] if paper_dataset else dataset


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
        samples = [data["train_samples"], data["test_samples"]]
        paper_dataset = dataset_of(name)
        expected = DATASETS[paper_dataset]["samples"] if paper_dataset else samples
        if samples != expected:
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
    tables = summary["tables"]
    encodings = []
    for learned in summary["encodings"]:
        similarities = [f"{value:.2f}" for value in learned["similarity"]]
        encodings.append([learned["encoding"].upper(), learned["run"], *similarities])
    return render(
        "report.md.j2",
        summary=summary,
        introduction=introduction(summary),
        verdicts=verdict_counts(summary),
        claims=[claim_cells(claim, tables) for claim in summary["claims"]],
        experiments=EXPERIMENTS.values(),
        title=dataset_title,
        rows=head_and_rows,
        has_impossible=has_impossible,
        differences=differences,
        figures=FIGURES,
        encodings=encodings,
        plural=plural,
    )


def claim_cells(claim: dict[str, Any], tables: Sequence[Table]) -> list[str]:
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


def head_and_rows(table: Table) -> tuple[list[str], list[list[str]]]:
    rows = table["rows"].items()
    compares = any(row["paper"] for _, row in rows)
    head = ["%", "seeds"]
    for metric in METRICS:
        head.append(NAMES[metric])
        if compares:
            head += ["paper", "difference"]
    return head, [row_cells(label, row, compares) for label, row in rows]


def has_impossible(table: Table) -> bool:
    return any(impossible(row["paper"]) for row in table["rows"].values())


def differences(table: Table) -> list[list[str]]:
    rows: dict[str, list[str]] = {}
    for finding in table["findings"]:
        pair = f"{finding['first']} - {finding['second']}"
        rows.setdefault(pair, [pair]).extend(difference_cells(finding))
    return list(rows.values())


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
