"""The commands from a prepared dataset to a run: models, train, evaluate; and doctor, which
describes the machine."""

from pathlib import Path
from typing import Literal

from rich.console import Group
from typer import Argument, Option

from posrec.cli.options import (
    Dataset,
    Device,
    EncodingOption,
    Json,
    ModelOption,
    RunFolder,
    Threads,
    optional,
    switch,
)
from posrec.cli.printing import console, say, show, warn
from posrec.cli.tables import (
    doctor_table,
    evaluation_tables,
    models_table,
    parts_table,
    settings_table,
    without_markdown,
)
from posrec.config import DEFAULT_MODEL, described_settings, parse_pairs
from posrec.progress import TerminalProgress


def models(
    model: str | None = Argument(
        None, help="A model; or your own, as my_model.py:MY_SPEC."
    ),
    as_json: Json = False,
) -> None:
    """List the models; or what can be set of one, for --set key=value.

    Example: posrec models posrec
    """
    from posrec.models.registry import MODELS, find_spec
    from posrec.training.settings import Settings

    if model is None:
        descriptions = {name: spec.about for name, spec in MODELS.items()}
        show(descriptions, models_table(MODELS), as_json)
        return
    spec = find_spec(model)
    settings = described_settings(spec.config())
    training = described_settings(Settings(**spec.settings)) if spec.is_trained else []
    figures = {
        name: {"default": default, "meaning": without_markdown(description)}
        for name, default, description in (*settings, *training)
    }
    shown = Group(f"{model}: {spec.about}", "", settings_table("setting", settings))
    if training:
        shown = Group(shown, "", settings_table("of training", training))
    show(figures, shown, as_json)


def train(
    dataset: Dataset,
    out: Path = Option(..., help="The run folder to create."),
    model: str | None = optional(
        f"See posrec models; or my_model.py:MY_SPEC. [default: {DEFAULT_MODEL}]"
    ),
    start_from: Path | None = Option(
        None,
        "--from",
        help="A run to start from, on the sessions after its own and a few others.",
    ),
    keep_items: bool = switch(
        "--keep-items", "Keep the items of that run that the dataset does not have."
    ),
    settings: list[str] | None = Option(
        None, "--set", help="key=value, e.g. d=64; see posrec models. Can be repeated."
    ),
    protocol: str | None = optional(
        "paper (a fixed number of epochs), early-stop or refit."
    ),
    epochs: int | None = optional("Passes over the training data."),
    seed: int | None = optional("Of weights, shuffling and dropout."),
    device: Device = "auto",
    threads: Threads = None,
    resume: bool = switch("--resume", "Continue the run in --out from its checkpoint."),
    export: bool = Option(
        True,
        help="Write the export for serving too: ONNX and 8-bit items; see posrec export.",
    ),
    track: Literal["tensorboard", "mlflow"] | None = optional(
        "tensorboard: write RUN/tensorboard too; needs posrec[track]. mlflow: log to "
        "MLFLOW_TRACKING_URI; needs posrec[mlflow]."
    ),
) -> None:
    """Train a model and evaluate it on the test part, if the dataset has one.

    Example: posrec train shop --out runs/first
    posrec train shop --model posrec --out runs/paper --set lambda2=0.5
    posrec train today --from runs/yesterday --out runs/today
    torchrun --nproc-per-node 4 -m posrec train shop --out runs/first
    """
    from posrec.data.dataset import load
    from posrec.device import started_by_torchrun
    from posrec.evaluation.novelty import notices
    from posrec.fitting.fit import fit_together, write_run
    from posrec.fitting.job import FitOptions

    chosen = parse_pairs(settings)
    named = {"protocol": protocol, "epochs": epochs, "seed": seed}
    chosen |= {name: value for name, value in named.items() if value is not None}
    data = load(dataset)
    fit = fit_together if started_by_torchrun() else write_run
    with TerminalProgress() as progress:
        options = FitOptions(
            chosen,
            device,
            progress,
            resume,
            track,
            start_from=start_from,
            keep_items=keep_items,
            export=export,
        )
        result = fit(data, model, out, options)
    if result is None:
        return  # the first of several processes prints the result
    run, evaluation = result
    if evaluation.metrics:
        model = run.config["model"]
        console.print(evaluation_tables(model, evaluation, data.ceiling))
        for notice in notices(data):
            warn(notice)
    say(f"The run is in {run.path}.")


def evaluate(
    run: RunFolder,
    dataset: Path = Argument(
        ..., help="The prepared dataset whose test part is ranked."
    ),
    model: ModelOption = None,
    encoding: EncodingOption = None,
    match_ids: bool = switch(
        "--match-ids", "The dataset has other items: match them by id, write nothing."
    ),
    items: Path | None = optional(
        "Rank it as it is served with this items file, which may list new items; write nothing."
    ),
    exclude: str | None = optional(
        "Rank without the current item, or without all seen ones; write nothing."
    ),
    windows: int | None = optional(
        "Also show the metrics of this many parts of the test part, in order of time.",
        min=2,
    ),
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Rank all items for every test sample: recall, mrr, ndcg, coverage, popularity.

    Example: posrec evaluate runs/first shop
    posrec evaluate runs/first shop --windows 4
    """
    from posrec.data.dataset import load
    from posrec.evaluation.novelty import notices
    from posrec.evaluation.windows import metrics_by_part, parts_of_test
    from posrec.fitting.evaluate_run import evaluate_run
    from posrec.runs.run import load_run

    opened = load_run(run, model, encoding)
    data = load(dataset)
    parts = [] if windows is None else parts_of_test(data, windows)
    with TerminalProgress() as progress:
        evaluation = evaluate_run(
            opened, data, device, progress, match_ids, exclude, items
        )
    tables = evaluation_tables(opened.config["model"], evaluation, data.ceiling)
    figures = evaluation.as_json()
    if parts:
        by_part = metrics_by_part(evaluation.ranks, parts, data)
        figures["windows"] = by_part
        tables = Group(tables, "", parts_table(by_part))
    show(figures, tables, as_json)
    if evaluation.of_lists and not as_json:
        of_lists = evaluation.of_lists.items()
        values = ", ".join(f"{name} {value:.4g}" for name, value in of_lists)
        say(f"Of the lists: {values}.")
    for notice in notices(data, items is not None):
        warn(notice)


def doctor(as_json: Json = False) -> None:
    """Show versions, devices, threads, memory and disk, and what each extra would add.

    Example: posrec doctor
    """
    from posrec.doctor import diagnose

    diagnosis = diagnose()
    show(diagnosis, doctor_table(diagnosis), as_json)
