"""What is measured and shown: demo, encodings, compare."""

from pathlib import Path
from typing import Annotated

import typer

from posrec.cli.printing import Device, Json, console, show
from posrec.errors import InputError


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


def compare(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    models: Annotated[str, typer.Option(help="At least two, separated by commas; see posrec models.")],
    out: Annotated[Path, typer.Option(help="The folder for the runs and the report.")] = Path("comparison"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, for every trained model.")] = None,
    device: Device = "auto",
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
