"""The paper's experiments from one command: run the cells that are missing, then report on all that are there."""

import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posrec.data.dataset import PreparedDataset, load
from posrec.errors import InputError
from posrec.experiments.reproduce.claims import Answer, answers, pairs_of
from posrec.experiments.reproduce.grid import FIGURES, all_cells, chosen
from posrec.experiments.reproduce.jobs import Cell, Outcome, run_cells, saved
from posrec.experiments.reproduce.paper import METRICS, SAMPLES, TITLES, dataset_of
from posrec.experiments.reproduce.tables import Table, make_table
from posrec.io import whole_file, write_json, write_text
from posrec.progress import Progress, SilentProgress

CELLS, REPORT, MARKDOWN, SUMMARY = "cells", "report.html", "report.md", "summary.json"
QUICK_SEEDS = 2
# For every model that has it: everything is run, nothing is learned to the end.
QUICK = {"d": 16, "hidden": 16, "epochs": 1, "batch_size": 256, "learning_rate": 0.01, "max_length": 10}


@dataclass(frozen=True)
class Results:
    """All that a report is made of."""

    experiment: str
    datasets: Mapping[str, PreparedDataset]  # by the folder's name
    tables: list[Table]
    answers: list[Answer]
    outcomes: Mapping[str, Outcome]
    cells: Sequence[Cell]
    seeds: int
    quick: bool

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.error]

    @property
    def missing(self) -> int:
        return len(self.cells) - len(self.outcomes)

    @property
    def shows_encodings(self) -> bool:
        """Whether section 5.5 is part of it."""
        return self.experiment in (FIGURES.name, "all")

    def title(self, dataset: str) -> str:
        """A dataset of the paper by its own name, any other by its folder's."""
        return TITLES.get(dataset_of(dataset) or "", dataset)

    def records(self, key: str) -> list[str]:
        """What the cells say of where they were run, each answer once."""
        return sorted({str(outcome.record[key]) for outcome in self.outcomes.values()})

    @property
    def seconds(self) -> float:
        return sum(float(outcome.record["total_seconds"]) for outcome in self.outcomes.values())


def reproduce(
    experiment: str,
    data: Sequence[Path],
    out: Path,
    seeds: int = 5,
    device: str = "auto",
    minutes: float | None = None,
    archive: Path | None = None,
    quick_sessions: int | None = None,
    progress: Progress | None = None,
    with_report: bool = True,
) -> Results:
    """Run what is missing of `experiment` into `out/cells`, and write the report. `quick_sessions`: on a small shop."""
    progress = progress or SilentProgress()
    experiments = chosen(experiment)
    out.mkdir(parents=True, exist_ok=True)
    quick = quick_sessions is not None
    datasets = {"demo": quick_shop(out, quick_sessions)} if quick_sessions else open_all(data)
    everywhere = QUICK if quick else {}
    seeds = min(seeds, QUICK_SEEDS) if quick else seeds
    cells = all_cells(experiments, list(datasets), seeds, everywhere)
    if archive is not None and archive.exists():
        unpack(archive, out / CELLS)
    try:
        outcomes = run_cells(cells, datasets, out / CELLS, device, minutes, progress)
    finally:
        if archive is not None:
            pack(out / CELLS, archive)
    if not with_report:
        return Results(experiment, datasets, [], [], outcomes, cells, seeds, quick)
    from posrec.experiments.reproduce.markdown import markdown
    from posrec.experiments.reproduce.report import report

    tables: list[Table] = []
    for one in (one for one in experiments if one is not FIGURES):
        for name, prepared in datasets.items():
            progress.update("Testing differences", len(tables), len(experiments) * len(datasets), name)
            pairs = pairs_of(one.name, dataset_of(name))
            tables.append(make_table(one, prepared, name, outcomes, pairs, seeds, everywhere))
    results = Results(experiment, datasets, tables, answers(tables), outcomes, cells, seeds, quick)
    write_text(out / REPORT, report(results))
    write_text(out / MARKDOWN, markdown(results))
    write_json(out / SUMMARY, summary(results))
    return results


def open_all(folders: Sequence[Path]) -> dict[str, PreparedDataset]:
    if not folders:
        raise InputError("no dataset: name one with --data DIR, or try everything on a small shop with --quick")
    datasets = {folder.resolve().name: load(folder) for folder in folders}
    if len(datasets) < len(folders):
        raise InputError("two datasets have the same folder name, by which cells are told apart; rename one")
    return datasets


def differs(name: str, data: PreparedDataset) -> str | None:
    """A sentence where a dataset named like one of the paper's has other samples."""
    expected = SAMPLES.get(dataset_of(name) or "")
    if expected in (None, (len(data.train), len(data.test))):
        return None
    return (
        f"{name} has {len(data.train):,} training and {len(data.test):,} test samples where the paper has "
        f"{expected[0]:,} and {expected[1]:,}: its figures don't compare."
    )


def quick_shop(out: Path, sessions: int) -> PreparedDataset:
    """A demo shop of few sessions, made once."""
    from posrec.demo.shop import make_demo

    folder = out / f"demo-{sessions}"
    return load(folder / "data") if (folder / "data").exists() else make_demo(folder, sessions=sessions)


def pack(folder: Path, archive: Path) -> None:
    """All cells in one file, for machines that give back few."""
    with whole_file(archive, overwrite=True) as unfinished, tarfile.open(unfinished, "w:gz") as file:
        for path in sorted([*folder.glob("*.json"), *folder.glob("*.npz")]):
            if not path.name.startswith("."):  # another process's, unfinished
                file.add(path, path.name)


def unpack(archive: Path, folder: Path) -> None:
    """Add an archive's cells to a folder; those that are there stay, since they may be newer, unless they failed."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {outcome.path.stem for outcome in saved(folder).values() if not outcome.error}
    try:
        with tarfile.open(archive) as file:
            for member in file:
                name = Path(member.name)
                plain = member.isfile() and name.name == member.name and name.suffix in (".json", ".npz")
                if plain and name.stem not in there:
                    file.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{archive} can't be read as an archive of cells ({error}); remove it") from None


def summary(results: Results) -> dict[str, Any]:
    """The report's figures for programs: tables, findings, answers, and where they come from."""
    return {
        "experiment": results.experiment,
        "seeds": results.seeds,
        "quick": results.quick,
        "datasets": {name: data.fingerprint for name, data in results.datasets.items()},
        "machines": results.records("machine"),
        "versions": {key: results.records(key) for key in ("posrec", "torch", "python")},
        "seconds": round(results.seconds, 1),
        "cells": {"wanted": len(results.cells), "missing": results.missing},
        "failed": {outcome.cell.name: outcome.error for outcome in results.failures},
        "tables": [
            {
                "experiment": table.experiment.name,
                "dataset": table.dataset,
                "rows": {line.row.label: figures(line) for line in table.lines},
                "findings": [asdict(replace_infinite(one)) for one in table.findings],
            }
            for table in results.tables
        ],
        "claims": [
            {"claim": one.claim.text, "dataset": one.dataset, "metric": one.metric, "verdict": one.verdict,
             "evidence": one.evidence}
            for one in results.answers
        ],
    }  # fmt: skip


def replace_infinite(finding: Any) -> Any:
    """JSON has no infinity: a margin that one seed can't give is written as null."""
    return replace(finding, margin=None) if finding.margin == float("inf") else finding


def figures(line: Any) -> dict[str, Any]:
    if not line.outcomes:
        return {"seeds": 0}
    shown = {metric: [round(line.mean(metric), 2), *([round(deviation, 2)] if deviation is not None else [])]
             for metric in METRICS for deviation in [line.deviation(metric)]}  # fmt: skip
    return {"seeds": len(line.outcomes), **shown, "paper": {name: list(figure) for name, figure in line.paper.items()}}
