"""Commands that run experiments: demo, encodings, compare, reproduce, tune."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from posrec.cli.printing import LOCAL, Address, Device, Engine, Json, Threads, Workers, console, say, show, warn
from posrec.config import DEFAULT_MODEL
from posrec.errors import InputError, RunFailed


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("posrec-demo"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Train for fewer or more than 4 epochs.")] = None,
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Stop before the training.")] = False,
    threads: Threads = None,
) -> None:
    """Run the main job on a small simulated shop that comes with the package; under three minutes on two cores.

    Example: posrec demo
    """
    from posrec.cli.tour import show_models, show_next, show_shop
    from posrec.progress import TerminalProgress

    data = show_shop(out)
    if not prepare_only:
        with TerminalProgress() as progress:
            show_models(data, out, progress, epochs)
    show_next(out, trained=not prepare_only)


def encodings(
    as_json: Json = False,
    theory: Annotated[bool, typer.Option("--theory", help="Check the paper's statements instead.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's figures into this folder.")] = None,
    run: Annotated[list[Path] | None, typer.Option(help="A trained run; examine and draw its learned table.")] = None,
    max_length: Annotated[int, typer.Option(min=2, help="Examine sessions of up to this many clicks.")] = 70,
    dimensions: Annotated[int, typer.Option(min=2, help="The width d of the encodings.")] = 100,
    threads: Threads = None,
) -> None:
    """Show which positional encodings tell positions apart, by the definitions and by the paper.

    Example: posrec encodings --run runs/tonight --plot figures
    """
    from posrec.cli.encoding_tables import encodings_table, statements_table
    from posrec.experiments.encodings import as_json as row_as_json
    from posrec.experiments.encodings import examine, load_trained_encoding
    from posrec.progress import TerminalProgress

    if plot is not None and plot.exists() and not plot.is_dir():
        raise InputError(f"--plot {plot} is a file; name a folder")
    trained = [load_trained_encoding(folder) for folder in run or []]
    if theory and trained:
        raise InputError("--theory examines the paper's own schemes; leave out --theory or --run")
    if theory:
        from posrec.encodings.theory import statements

        worked = statements(max_length, dimensions)
        show([asdict(statement) for statement in worked], statements_table(worked), as_json)
    else:
        with TerminalProgress() as progress:
            rows = examine(max_length, dimensions, trained, progress)
        show({row.label: row_as_json(row) for row in rows}, encodings_table(rows), as_json)
    if plot is not None:
        from posrec.experiments.encoding_figures import draw, missing_figures

        with TerminalProgress() as progress:
            written = draw(plot, dimensions, trained, progress)
        for line in filter(None, [*(f"wrote {path}" for path in written), missing_figures(trained)]):
            warn(line)  # stdout is the table's or the JSON's


def compare(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    models: Annotated[
        str | None,
        typer.Option(help="To train, with commas between them: see posrec models; or your own, my_model.py:SPEC."),
    ] = None,
    runs: Annotated[list[Path] | None, typer.Option(help="A finished run; can be repeated.")] = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(help="name=FILE: scores of another system, Parquet or JSON lines; can be repeated."),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Write the test samples to this .jsonl file, for another system to score.")
    ] = None,
    match_ids: Annotated[
        bool, typer.Option("--match-ids", help="Runs may have other items than the dataset: match them by id.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder for the runs and the report.")] = Path("comparison"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, for every trained model.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Put models, finished runs and other systems side by side, and say which differences are real.

    Example: posrec compare shop --models posrec,pop
    posrec compare shop --models stan --runs runs/first --runs runs/second
    posrec compare shop --samples samples.jsonl
    posrec compare shop --runs runs/first --scores other=scores.parquet
    """
    from posrec.cli.tables import best_table, metrics_table
    from posrec.config import parse_pairs
    from posrec.data.dataset import load
    from posrec.errors import plural
    from posrec.experiments.compare import compare
    from posrec.progress import TerminalProgress

    data, chosen = load(dataset), parse_pairs(settings or [])
    files = parse_pairs(scores or [], "--scores other=scores.parquet")
    if len(files) < len(scores or []):
        raise InputError("--scores: two files have the same name; give each its own")
    if samples is not None:
        from posrec.experiments.other_system import write_samples

        write_samples(data, samples)
        say(f"Wrote {plural(len(data.test), 'test sample')} to {samples}.")
        if not (models or runs or files):
            return
    trained = models.split(",") if models else []
    options: dict[str, Any] = {"runs": runs or [], "scores": files, "match_ids": match_ids}
    with TerminalProgress() as progress:
        result = compare(data, trained, out, chosen, device, progress, **options)
    shown = result.pairs_with_best()
    console.print(metrics_table(result.metrics, data.ceiling), "", best_table(shown), sep="\n")
    more = f", with all {len(result.pairs)} comparisons" if len(result.pairs) > len(shown) else ""
    say(f"{result.conclusion()} The report is in {out}/report.html{more}.")


def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="overall, encodings, plug-in, anchors, sensitivity, figures or all.")
    ],
    data: Annotated[list[Path] | None, typer.Option(help="A prepared dataset; may be given several times.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for the results and the report.")] = Path("reproduction"),
    seeds: Annotated[int, typer.Option(min=1, help="For PosRec and its variants; other models get up to 3.")] = 5,
    minutes: Annotated[float | None, typer.Option(min=0, help="Start no job after this; 0: report only.")] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Only run the jobs: no tests, no figures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny models on a small simulated shop: a minute.")] = False,
    quick_sessions: Annotated[int, typer.Option(min=100, hidden=True)] = 2000,
    engine: Engine = LOCAL,
    address: Address = None,
    workers: Workers = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Run the paper's experiments and report on them; results are kept, and the same command continues.

    Example: posrec reproduce all --data diginetica --data yoochoose1_64 --out reproduction
    posrec reproduce all --data diginetica --out reproduction --engine ray --address 10.0.0.5:6379
    """
    from posrec.errors import plural
    from posrec.experiments.reproduce.report import introduction, verdict_counts
    from posrec.experiments.reproduce.run import reproduce
    from posrec.io.executor import cluster_of
    from posrec.progress import TerminalProgress

    with cluster_of(engine, address, workers) as cluster, TerminalProgress() as progress:
        sessions = quick_sessions if quick else None
        summary = reproduce(
            experiment, data or [], out, seeds, device, minutes, sessions, progress, not no_report, cluster
        )
    say("\n".join(introduction(summary)))
    if not no_report:
        say(verdict_counts(summary))
        say(f"The report is in {out}/report.md.")
    if summary["failed"]:
        where = f"the records with an error in {out}/jobs" if no_report else f"the end of {out}/report.md"
        raise RunFailed(f"{plural(len(summary['failed']), 'training')} failed: see {where}")


def tune(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    model: Annotated[str, typer.Option(help="See posrec models; or your own, as my_model.py:MY_SPEC.")] = DEFAULT_MODEL,
    trials: Annotated[int, typer.Option(min=1, help="How many in all, including those of earlier calls.")] = 20,
    out: Annotated[Path, typer.Option(help="The folder of the search; naming it again continues it.")] = Path("tuning"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value: fixed, not searched.")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="At most; by default 15, or what the learning rate is planned for.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the search and of every trial.")] = 0,
    engine: Engine = LOCAL,
    address: Address = None,
    workers: Workers = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Search for good settings on the validation part; the test part is not used. Needs posrec[tune].

    Example: posrec tune shop --trials 30
    posrec tune shop --trials 200 --engine ray
    """
    from posrec.config import parse_pairs
    from posrec.data.dataset import load
    from posrec.errors import plural
    from posrec.experiments.tune import train_command, tune
    from posrec.io.executor import cluster_of
    from posrec.progress import TerminalProgress

    fixed = parse_pairs(settings or [])
    with cluster_of(engine, address, workers) as cluster, TerminalProgress() as progress:
        tuned = tune(load(dataset), model, trials, out, fixed, epochs, device, seed, progress, cluster)
    by_default = "the defaults were not tried"
    if tuned.default_value is not None:
        by_default = f"{100 * tuned.default_value:.2f} with the default settings"
    say(
        f"{plural(tuned.trials, 'trial')}, {tuned.pruned} stopped early, {tuned.failed} failed. Best {tuned.metric} on "
        f"validation: {100 * tuned.value:.2f} ({by_default}). Train with it:"
    )
    say(train_command(dataset, model, tuned, fixed, epochs))
