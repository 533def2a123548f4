"""The commands from a prepared dataset to a run: models, train, evaluate; and doctor, which describes the machine."""

from pathlib import Path
from typing import Annotated

import typer

from posrec.cli.printing import Device, EncodingOption, Json, ModelOption, Threads, console, say, show
from posrec.config import DEFAULT_MODEL


def models(
    model: Annotated[
        str | None, typer.Argument(help="A model; or your own, as my_model.py:MY_SPEC.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models; or what can be set of one, for --set key=value.

    Example: posrec models posrec
    """
    from posrec.cli.tables import models_table, settings_table, without_markdown
    from posrec.models.registry import MODELS

    if model is None:
        show({name: spec.about for name, spec in MODELS.items()}, models_table(MODELS), as_json)
        return
    from posrec.config import described_settings
    from posrec.models.registry import find_spec
    from posrec.training.settings import Settings

    spec = find_spec(model)
    own = described_settings(spec.config())
    training = described_settings(Settings(**spec.settings)) if spec.is_trained else []
    figures = {
        name: {"default": default, "meaning": without_markdown(description)}
        for name, default, description in (*own, *training)
    }
    show(figures, settings_table(f"{model}: {spec.about}", own, training), as_json)


def train(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    out: Annotated[Path, typer.Option(help="The run folder to create.")],
    model: Annotated[
        str | None,
        typer.Option(help=f"See posrec models; or your own, as my_model.py:MY_SPEC. [default: {DEFAULT_MODEL}]"),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", help="A run to start from: trains on the sessions after its own and a few others."),
    ] = None,
    keep_items: Annotated[
        bool,
        typer.Option("--keep-items", help="Keep the items of that run that the dataset does not have."),
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, e.g. d=64; see docs/training.md. Can be repeated.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="paper (a fixed number of epochs), early-stop or refit.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, shuffling and dropout.")] = None,
    device: Device = "auto",
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out from its checkpoint.")] = False,
    export: Annotated[
        bool, typer.Option(help="Write the export for serving too: ONNX and 8-bit items; see posrec export.")
    ] = True,
    track: Annotated[bool, typer.Option("--track", help="Write RUN/tensorboard too; needs posrec[track].")] = False,
) -> None:
    """Train a model and evaluate it on the test part, if the dataset has one.

    Example: posrec train shop --out runs/first
    posrec train shop --model posrec --out runs/paper --set lambda2=0.5
    posrec train today --from runs/yesterday --out runs/today
    torchrun --nproc-per-node 4 -m posrec train shop --out runs/first
    """
    from posrec.cli.tables import metrics_table
    from posrec.config import parse_pairs
    from posrec.data.dataset import load
    from posrec.fitting.fit import fit_run
    from posrec.progress import SilentProgress, TerminalProgress
    from posrec.training.distributed.world import joined

    chosen = parse_pairs(settings or [])
    options = {"protocol": protocol, "epochs": epochs, "seed": seed}
    chosen.update({key: value for key, value in options.items() if value is not None})
    data = load(dataset)
    with joined(device) as world, TerminalProgress() as terminal:
        progress = terminal if world.is_first else SilentProgress()
        run, evaluation = fit_run(
            data,
            model,
            out,
            chosen,
            device,
            resume,
            progress,
            track,
            start_from=start_from,
            keep_items=keep_items,
            world=world,
            export=export,
        )
    if not world.is_first:
        return
    if evaluation.metrics:
        console.print(metrics_table({run.config["model"]: evaluation.metrics}, data.ceiling))
    say(f"The run is in {run.path}.")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    dataset: Annotated[Path, typer.Argument(help="The prepared dataset whose test part is ranked.")],
    model: ModelOption = None,
    encoding: EncodingOption = None,
    match_ids: Annotated[
        bool,
        typer.Option(
            "--match-ids", help="The dataset has other items: match them by id, and write nothing to the run."
        ),
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Rank all items for every test sample: recall, mrr, ndcg, coverage, popularity.

    Example: posrec evaluate runs/first shop
    """
    from posrec.cli.tables import metrics_table
    from posrec.data.dataset import load
    from posrec.fitting.evaluate_run import evaluate_run
    from posrec.progress import TerminalProgress
    from posrec.runs.run import load_run

    opened, data = load_run(run, model, encoding), load(dataset)
    with TerminalProgress() as progress:
        evaluation = evaluate_run(opened, data, device, progress, match_ids)
    show(evaluation.as_json(), metrics_table({opened.config["model"]: evaluation.metrics}, data.ceiling), as_json)
    if evaluation.of_lists and not as_json:
        beyond = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.of_lists.items())
        say(f"Of the lists: {beyond}.")


def doctor(as_json: Json = False) -> None:
    """Show versions, devices, threads, memory and disk, and what each extra would add.

    Example: posrec doctor
    """
    from posrec.cli.tables import doctor_table
    from posrec.doctor import diagnose

    diagnosis = diagnose()
    show(diagnosis.as_json(), doctor_table(diagnosis), as_json)
