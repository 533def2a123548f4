"""Commands that run experiments: demo, encodings, compare, positions, reproduce, tune."""

from dataclasses import asdict
from pathlib import Path

from typer import Argument, Option

from posrec.cli.options import (
    LOCAL,
    Address,
    Dataset,
    Device,
    Engine,
    Json,
    Threads,
    Workers,
    optional,
    switch,
)
from posrec.cli.printing import console, say, show, warn
from posrec.cli.tables import comparison_tables
from posrec.config import DEFAULT_MODEL, parse_pairs
from posrec.errors import InputError, RunFailed, plural
from posrec.progress import TerminalProgress


def demo(
    out: Path = Option(Path("posrec-demo"), help="The folder to write into."),
    epochs: int | None = optional("Train for fewer or more than 4 epochs.", min=1),
    prepare_only: bool = switch("--prepare-only", "Stop before the training."),
    threads: Threads = None,
) -> None:
    """Run the main job on a small simulated shop that comes with the package; under three minutes
    on two cores.

    Example: posrec demo
    """
    from posrec.cli.tour import tour

    tour(out, epochs, prepare_only)


def encodings(
    as_json: Json = False,
    theory: bool = switch("--theory", "Check the paper's statements instead."),
    plot: Path | None = optional("Draw the paper's figures into this folder."),
    run: list[Path] | None = optional(
        "A trained run; examine and draw its learned table."
    ),
    max_length: int = Option(
        70, min=2, help="Examine sessions of up to this many clicks."
    ),
    dimensions: int = Option(100, min=2, help="The width d of the encodings."),
    threads: Threads = None,
) -> None:
    """Show which positional encodings tell positions apart, by the definitions and by the paper.

    Example: posrec encodings --run runs/tonight --plot figures
    """
    from posrec.cli.encoding_tables import encodings_table, statements_table
    from posrec.encodings.theory import statements
    from posrec.experiments.encodings import (
        as_json as row_as_json,
        examine,
        load_trained_encoding,
    )

    if plot is not None and plot.exists() and not plot.is_dir():
        raise InputError(f"--plot {plot} is a file; name a folder")
    trained = [load_trained_encoding(folder) for folder in run or []]
    if theory and trained:
        raise InputError(
            "--theory examines the paper's own schemes; leave out --theory or --run"
        )
    if theory:
        checked = statements(max_length, dimensions)
        figures = [asdict(statement) for statement in checked]
        show(figures, statements_table(checked), as_json)
    else:
        with TerminalProgress() as progress:
            rows = examine(max_length, dimensions, trained, progress)
        by_label = {row.label: row_as_json(row) for row in rows}
        show(by_label, encodings_table(rows), as_json)
    if plot is not None:
        from posrec.experiments.encoding_figures import draw, missing_figures

        with TerminalProgress() as progress:
            written = draw(plot, dimensions, trained, progress)
        # Standard output is for the table or the JSON.
        for path in written:
            warn(f"wrote {path}")
        if missing := missing_figures(trained):
            warn(missing)


def compare(
    dataset: Dataset,
    models: str | None = optional(
        "To train, with commas between: see posrec models; or my_model.py:SPEC."
    ),
    runs: list[Path] | None = optional("A finished run; can be repeated."),
    scores: list[str] | None = optional(
        "name=FILE: another system's scores, Parquet or JSON lines; can be repeated."
    ),
    scores_again: list[str] | None = optional(
        "name=FILE: that system's scores of the --shuffled samples; warns if they differ."
    ),
    samples: Path | None = optional(
        "Write the test samples to this .jsonl file, for another system."
    ),
    shuffled: bool = switch("--shuffled", "Write --samples in another order."),
    match_ids: bool = switch(
        "--match-ids", "Runs may have other items: match them by id."
    ),
    out: Path = Option(
        Path("comparison"), help="The folder for the runs and the report."
    ),
    windows: int | None = optional(
        "Train every model in this many windows in time, the last of which is the test part.",
        min=2,
    ),
    settings: list[str] | None = Option(
        None, "--set", help="key=value, for every trained model."
    ),
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Put models, finished runs and other systems side by side, and say which differences are real.

    Example: posrec compare shop --models posrec,pop
    posrec compare shop --models stan --runs runs/first --runs runs/second
    posrec compare shop --models posrec,stan --windows 4
    posrec compare shop --samples samples.jsonl
    posrec compare shop --samples shuffled.jsonl --shuffled
    posrec compare shop --runs runs/first --scores other=a.parquet --scores-again other=b.parquet
    """
    from posrec.data.dataset import load
    from posrec.evaluation.novelty import notices
    from posrec.experiments.compare import compare

    data = load(dataset)
    chosen = parse_pairs(settings)
    files = parse_files("--scores", scores)
    files_again = parse_files("--scores-again", scores_again)
    if shuffled and samples is None:
        raise InputError("--shuffled needs --samples FILE, the file to write")
    if samples is not None:
        from posrec.experiments.other_system import write_samples

        write_samples(data, samples, shuffled)
        say(f"Wrote {plural(len(data.test), 'test sample')} to {samples}.")
        if not (models or runs or files):
            return
    with TerminalProgress() as progress:
        result = compare(
            data,
            models.split(",") if models else [],
            out,
            chosen,
            device,
            progress,
            runs=runs or [],
            scores=files,
            scores_again=files_again,
            match_ids=match_ids,
            windows=windows,
        )
    console.print(comparison_tables(result, data.ceiling))
    report = f"The report is in {out}/report.html"
    if len(result.pairs) > len(result.pairs_with_best()):
        report += f", with all {len(result.pairs)} comparisons"
    say(f"{result.conclusion()} {report}.")
    if result.windows is not None:
        say(result.windows.conclusion())
    for notice in [*result.warnings, *notices(data)]:
        warn(notice)


def parse_files(option: str, pairs: list[str] | None) -> dict[str, str]:
    """The values of an option that is given as name=FILE."""
    files = parse_pairs(pairs, f"{option} other=scores.parquet")
    if len(files) < len(pairs or []):
        raise InputError(f"{option}: two files have the same name; give each its own")
    return files


def positions(
    dataset: Dataset,
    out: Path = Option(
        Path("positions"), help="The folder for positions.json and the figure."
    ),
    seeds: int = Option(1, min=1, help="How many times each row is trained."),
    settings: list[str] | None = Option(
        None, "--set", help="key=value, of PosRec and of its training."
    ),
    as_json: Json = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure what the order of clicks, and their positions, are worth in a log: PosRec is trained
    five times, with and without them.

    Example: posrec positions shop
    posrec positions shop --seeds 3 --set epochs=5
    """
    from posrec.cli.tables import positions_tables
    from posrec.data.dataset import load
    from posrec.experiments.positions import positions

    with TerminalProgress() as progress:
        result = positions(
            load(dataset), out, parse_pairs(settings), seeds, device, progress
        )
    show(asdict(result), positions_tables(result), as_json)
    if not as_json:
        say(f"{result.conclusion()} The figure is in {out}/positions.svg.")


def reproduce(
    experiment: str = Argument(
        ..., help="overall, encodings, plug-in, anchors, sensitivity, figures or all."
    ),
    data: list[Path] | None = optional(
        "A prepared dataset; may be given several times."
    ),
    out: Path = Option(
        Path("reproduction"), help="The folder for the results and the report."
    ),
    seeds: int = Option(
        5, min=1, help="For PosRec and its variants; other models get up to 3."
    ),
    minutes: float | None = optional("Start no job after this; 0: report only.", min=0),
    no_report: bool = switch("--no-report", "Only run the jobs: no tests, no figures."),
    quick: bool = switch("--quick", "Tiny models on a small simulated shop: a minute."),
    quick_sessions: int = Option(2000, min=100, hidden=True),
    engine: Engine = LOCAL,
    address: Address = None,
    workers: Workers = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Run the paper's experiments and report on them; results are kept, and the same command
    continues.

    Example: posrec reproduce all --data diginetica --data yoochoose1_64 --out reproduction
    posrec reproduce all --data diginetica --out reproduction --engine ray --address 10.0.0.5:6379
    """
    from posrec.experiments.reproduce.report import introduction, verdict_counts
    from posrec.experiments.reproduce.run import make_plan, reproduce
    from posrec.io.executor import executor_of

    sessions = quick_sessions if quick else None
    plan = make_plan(experiment, data or [], out, seeds, sessions)
    with (
        executor_of(engine, address, workers) as executor,
        TerminalProgress() as progress,
    ):
        summary = reproduce(
            plan, out, device, minutes, progress, executor, with_report=not no_report
        )
    say("\n".join(introduction(summary)))
    failures = f"the records with an error in {out}/jobs"
    if not no_report:
        say(verdict_counts(summary))
        say(f"The report is in {out}/report.md.")
        failures = f"the end of {out}/report.md"
    if summary["failed"]:
        count = plural(len(summary["failed"]), "training")
        raise RunFailed(f"{count} failed: see {failures}")


def tune(
    dataset: Dataset,
    models: str = Option(
        DEFAULT_MODEL,
        "--model",
        "--models",
        help="See posrec models; or your own, as my_model.py:MY_SPEC. Several, with commas "
        "between, get the same number of trials.",
    ),
    trials: int = Option(
        20, min=1, help="How many of each model, including those of earlier calls."
    ),
    out: Path = Option(
        Path("tuning"), help="The folder of the search; naming it again continues it."
    ),
    settings: list[str] | None = Option(
        None, "--set", help="key=value: fixed, not searched."
    ),
    epochs: int | None = optional(
        "At most; by default 15, or what the learning rate is planned for.", min=1
    ),
    seed: int = Option(0, help="Of the search and of every trial."),
    engine: Engine = LOCAL,
    address: Address = None,
    workers: Workers = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Search for good settings of models on the validation part, with the same budget for each; the
    test part is not used.

    Example: posrec tune shop --trials 30
    posrec tune shop --models narm,sasrec,stan --trials 20
    posrec tune shop --trials 200 --engine ray
    """
    from posrec.cli.tables import tuning_table
    from posrec.data.dataset import load
    from posrec.experiments.tune import Budget, train_command, tune_models
    from posrec.io.executor import executor_of

    fixed = parse_pairs(settings)
    with (
        executor_of(engine, address, workers) as executor,
        TerminalProgress() as progress,
    ):
        tuned = tune_models(
            load(dataset),
            models.split(","),
            Budget(trials, epochs, seed),
            out,
            fixed,
            device,
            progress,
            executor,
        )
    console.print(tuning_table(tuned, seed))
    say("Train with the best settings:")
    for model, outcome in tuned.items():
        say(train_command(dataset, model, outcome, fixed, epochs))
