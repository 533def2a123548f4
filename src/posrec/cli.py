"""The `posrec` command: parse, call, print. What a command does lives in the package; here are only its words.

Exit codes: 0 done, 1 failed, 2 bad input. Heavy modules are imported inside the commands that need them.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import posrec
from posrec.errors import InputError, RunFailed, RunStopped

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From click log to next-item recommendations, with position as information.",
)
console = Console(emoji=False)
complaints = Console(stderr=True, emoji=False)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"posrec {posrec.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options that stand before any command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("posrec-demo"),
    epochs: Annotated[int | None, typer.Option(help="Train for fewer or more than 4 epochs.")] = None,
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Stop before the training.")] = False,
) -> None:
    """Show the main job on a small shop that comes with the package; under three minutes on two cores.

    Example: posrec demo
    """
    from posrec.experiments.demo import show_models, show_next, show_shop
    from posrec.listener import TerminalListener

    data = show_shop(out, console)
    if not prepare_only:
        with TerminalListener() as listener:
            show_models(data, out, console, listener, epochs)
    show_next(out, console)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def prepare(
    source: Annotated[list[str], typer.Argument(help="The log: a file, several, or a quoted glob; gzip and zstd too.")],
    format: Annotated[
        str, typer.Option(help="yoochoose diginetica retailrocket otto recbole csv parquet sessions srgnn")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    test: Annotated[str | None, typer.Option(help="The test part of a split made before, kept as it is.")] = None,
    items: Annotated[str | None, typer.Option(help="A file about items: id, title, category, anything else.")] = None,
    recipe: Annotated[str | None, typer.Option(help="paper (the field's) or clean (what an engineer wants).")] = None,
    session_column: Annotated[str | None, typer.Option(help="csv, parquet, recbole: else guessed, and said.")] = None,
    item_column: Annotated[str | None, typer.Option()] = None,
    time_column: Annotated[str | None, typer.Option()] = None,
    time_unit: Annotated[str | None, typer.Option(help="s, ms, us or ns, for times that are numbers.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between the fields of a csv file; a comma if not given.")
    ] = None,
    event_column: Annotated[str | None, typer.Option(help="Which column says what kind of event a row is.")] = None,
    events: Annotated[str | None, typer.Option(help="The kinds to read, e.g. view,click.")] = None,
    gap: Annotated[str | None, typer.Option(help="Cut users' clicks into sessions at this silence, e.g. 30m.")] = None,
    test_days: Annotated[float | None, typer.Option(help="Test on the last days of the log.")] = None,
    test_share: Annotated[float | None, typer.Option(help="clean: else on this share of sessions, 0.1.")] = None,
    fraction: Annotated[
        str | None, typer.Option(help="Train on the most recent part of the samples, e.g. 1/64.")
    ] = None,
    min_support: Annotated[int | None, typer.Option(help="Drop items with fewer clicks; 5.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Drop sessions with fewer clicks; 2.")] = None,
    drop_repeats: Annotated[bool, typer.Option("--drop-repeats", help="clean: drop immediate repeats.")] = False,
    max_length: Annotated[int | None, typer.Option(help="clean: keep a session's latest clicks only.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the prepared dataset at --out.")] = False,
) -> None:
    """Turn a click log into a prepared dataset.

    Example: posrec prepare clicks.csv --format csv --out shop
    """
    from posrec.data.prepare import prepare
    from posrec.listener import TerminalListener
    from posrec.terminal import account_table, counts_line

    with TerminalListener() as listener:
        data = prepare(
            source, format, out, test=test, items=items, recipe=recipe, overwrite=overwrite, listener=listener,
            session_column=session_column, item_column=item_column, time_column=time_column, time_unit=time_unit,
            delimiter="\t" if delimiter == "\\t" else delimiter, event_column=event_column, events=events or None,
            gap=gap, test_days=test_days, test_share=test_share, fraction=fraction, min_support=min_support,
            min_length=min_length, drop_repeats=drop_repeats, max_length=max_length,
        )  # fmt: skip
    console.print(account_table(data.manifest["steps"]), "", counts_line(data.manifest), sep="\n")
    done = f"Prepared in [bold]{escape(str(out))}[/]. Look at it with: posrec stats {escape(str(out))}"
    console.print(done, highlight=False, soft_wrap=True)


@app.command()
def stats(dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")], as_json: Json = False) -> None:
    """Say what a prepared dataset holds.

    Example: posrec stats shop
    """
    from posrec.data.sessions import load
    from posrec.data.stats import stats
    from posrec.terminal import stats_table

    figures = stats(load(dataset))
    show(figures, stats_table(figures), as_json)


@app.command()
def encodings(
    as_json: Json = False,
    theory: Annotated[bool, typer.Option("--theory", help="Work through the paper's statements instead.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's figures into this folder.")] = None,
    run: Annotated[list[Path] | None, typer.Option(help="A trained run; examine and draw its learned table.")] = None,
    max_length: Annotated[int, typer.Option(min=2, help="Examine sessions of up to this many clicks.")] = 70,
    dimensions: Annotated[int, typer.Option(min=2, help="The width d of the encodings.")] = 100,
) -> None:
    """Which positional encodings can tell where in a session a click is, by the definitions and by the paper.

    Example: posrec encodings --run runs/tonight --plot figures
    """
    from posrec.experiments import encoding_table
    from posrec.experiments.trained_encoding import load_trained_encoding
    from posrec.listener import TerminalListener

    trained = [load_trained_encoding(folder) for folder in run or []]
    if theory and trained:
        raise InputError("--theory examines the paper's own schemes; leave out --theory or --run")
    if theory:
        from posrec.encodings.theory import statements

        worked = statements(max_length, dimensions)
        show(encoding_table.statements_json(worked), encoding_table.statements_table(worked), as_json)
    else:
        with TerminalListener() as listener:
            rows = encoding_table.examine(max_length, dimensions, trained, listener)
        show(encoding_table.as_json(rows), encoding_table.as_table(rows), as_json)
    if plot is not None:
        from posrec.experiments.encoding_figures import draw, left_out

        with TerminalListener() as listener:
            written = draw(plot, dimensions, trained, listener)
        for line in filter(None, [*(f"wrote {path}" for path in written), left_out(trained)]):
            typer.echo(line, err=True)  # stdout is the table's or the JSON's


@app.command()
def models(as_json: Json = False) -> None:
    """List the models.

    Example: posrec models
    """
    from posrec.models.catalog import CATALOG
    from posrec.terminal import models_table

    show({name: spec.about for name, spec in CATALOG.items()}, models_table(CATALOG), as_json)


@app.command()
def train(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    out: Annotated[Path, typer.Option(help="The run's folder to make.")],
    model: Annotated[str, typer.Option(help="See posrec models; or your own, as my_model.py:MY_SPEC.")] = "posrec",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given often.")] = None,
    protocol: Annotated[str | None, typer.Option(help="paper (a fixed number of epochs) or early-stop.")] = None,
    epochs: Annotated[int | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    track: Annotated[bool, typer.Option("--track", help="Write RUN/tensorboard too; needs posrec[track].")] = False,
) -> None:
    """Train a model and evaluate it on the test part.

    Example: posrec train shop --model posrec --out runs/first --set lambda2=0.5
    """
    from posrec.data.sessions import load
    from posrec.fit import fit_run
    from posrec.listener import TerminalListener
    from posrec.terminal import metrics_table
    from posrec.training.settings import parse_pairs

    wanted = parse_pairs(settings or [])
    named = {"protocol": protocol, "epochs": epochs, "seed": seed}
    wanted.update({key: value for key, value in named.items() if value is not None})
    data = load(dataset)
    with TerminalListener() as listener:
        run, outcome = fit_run(data, model, out, wanted, device, resume, listener, track)
    console.print(metrics_table({model: outcome.metrics}, data.ceiling))
    console.print(f"The run is in [bold]{run.path}[/].", highlight=False)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run.")],
    dataset: Annotated[Path, typer.Argument(help="The prepared dataset to test on.")],
    model: Annotated[str | None, typer.Option(help="my_model.py:MY_SPEC, for a run of a model of your own.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Json = False,
) -> None:
    """Rank every item for every test sample: recall, mrr, ndcg, coverage, popularity.

    Example: posrec evaluate runs/first shop
    """
    from posrec.data.sessions import load
    from posrec.fit import evaluate_run
    from posrec.listener import TerminalListener
    from posrec.runs import load_run
    from posrec.terminal import metrics_table

    opened, data = load_run(run, model), load(dataset)
    with TerminalListener() as listener:
        outcome = evaluate_run(opened, data, device, listener)
    show(outcome.as_json(), metrics_table({opened.config["model"]: outcome.metrics}, data.ceiling), as_json)


@app.command()
def compare(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    models: Annotated[str, typer.Option(help="At least two, separated by commas; see posrec models.")],
    out: Annotated[Path, typer.Option(help="The folder for the runs and the report.")] = Path("comparison"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, for every trained model.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Train models side by side and say which differences are real.

    Example: posrec compare shop --models posrec,pop
    """
    from posrec.data.sessions import load
    from posrec.experiments.compare import compare
    from posrec.listener import TerminalListener
    from posrec.terminal import metrics_table, pairs_table
    from posrec.training.settings import parse_pairs

    data = load(dataset)
    with TerminalListener() as listener:
        outcome = compare(data, models.split(","), out, parse_pairs(settings or []), device, listener)
    console.print(metrics_table(outcome.metrics, data.ceiling), "", pairs_table(outcome.pairs), sep="\n")
    console.print(f"The report is in [bold]{out}/report.html[/].", highlight=False)


@app.command()
def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="overall, encodings, plug-in, anchors, sensitivity, figures or all.")
    ],
    data: Annotated[list[Path] | None, typer.Option(help="A prepared dataset; may be given often.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for the cells and the report.")] = Path("reproduction"),
    seeds: Annotated[int, typer.Option(min=1, help="For PosRec and its variants; other models get up to 3.")] = 5,
    minutes: Annotated[float | None, typer.Option(min=0, help="Begin no training after this; 0: report only.")] = None,
    archive: Annotated[Path | None, typer.Option(help="Take cells from this .tar.gz, and put all into it.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny models on a small simulated shop: a few minutes.")
    ] = False,
    quick_sessions: Annotated[int, typer.Option(min=100, hidden=True)] = 4000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Run the paper's experiments and report on them; what is done is kept, and the same command goes on.

    Example: posrec reproduce all --data diginetica --data yoochoose1_64 --out reproduction
    """
    from posrec.experiments.reproduce import reproduce
    from posrec.experiments.reproduce_words import headline, lead
    from posrec.listener import TerminalListener

    with TerminalListener() as listener:
        sessions = quick_sessions if quick else None
        results = reproduce(experiment, data or [], out, seeds, device, minutes, archive, sessions, listener)
    console.print(*lead(results), headline(results), sep="\n", highlight=False, markup=False)
    console.print(f"The report is in [bold]{escape(str(out))}/report.html[/].", highlight=False)
    if results.failures:
        raise RunFailed(f"{len(results.failures)} trainings failed: see the end of {out}/report.html")


@app.command()
def tune(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    model: Annotated[str, typer.Option(help="See posrec models.")] = "posrec",
    trials: Annotated[int, typer.Option(min=1, help="How many in all, those of earlier calls counted.")] = 20,
    out: Annotated[Path, typer.Option(help="The folder of the search; the same one goes on with it.")] = Path("tuning"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value: fixed, not searched.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="At most; stopped early on validation.")] = 15,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Search for good settings on the validation part; the test part is not looked at. Needs posrec[tune].

    Example: posrec tune shop --model posrec --trials 30
    """
    from posrec.data.sessions import load
    from posrec.experiments.tune import train_command, tune
    from posrec.listener import TerminalListener
    from posrec.training.settings import parse_pairs

    fixed = parse_pairs(settings or [])
    with TerminalListener() as listener:
        found = tune(load(dataset), model, trials, out, fixed, epochs, device, seed, listener)
    usual = (
        f"{100 * found.usual:.2f} with the usual settings" if found.usual is not None else "the usual were not tried"
    )
    console.print(
        f"{found.trials} trials, {found.pruned} cut short, {found.failed} failed. Best mrr@20 on validation: "
        f"{100 * found.value:.2f} ({usual}). Train with it:",
        highlight=False,
    )
    typer.echo(train_command(dataset, model, found, fixed, epochs))


def show(figures: Any, table: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False, indent=2))
    else:
        console.print(table)


def main() -> None:
    """Run a command; what the user did wrong is told in a line or two, never as a traceback."""
    try:
        app()
    except InputError as error:
        fail(str(error), code=2)
    except RunFailed as error:
        fail(str(error), code=1)
    except RunStopped as error:
        fail(str(error), code=130)
    except KeyboardInterrupt:
        fail("interrupted; nothing was left half-written", code=130)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        fail(f"{error.strerror or error}{where}; nothing was left half-written", code=1)


def fail(message: str, code: int) -> None:
    complaints.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)
