"""The tour of `posrec demo`, step by step on the demo shop."""

import shutil
from pathlib import Path

from rich.text import Text

from posrec.cli.printing import console, say
from posrec.cli.tables import account_table, comparison_tables, stats_table
from posrec.data.dataset import PreparedDataset
from posrec.data.stats import stats
from posrec.demo.shop import make_demo
from posrec.errors import InputError
from posrec.experiments.compare import COMPARISON, REPORT, compare
from posrec.io import RUN, refuse_existing
from posrec.progress import TerminalProgress

MODELS = ["pop", "stan", "posrec", "posrec-plus"]
# Smaller models than the defaults and larger steps, so that two CPU cores are done in under three
# minutes.
SETTINGS = {
    "d": 64,
    "batch_size": 512,
    "learning_rate": 0.006,
    "epochs": 4,
    "protocol": "paper",
}
# The shop has hundreds of clicks for each item, so there is little to learn by heart.
OWN_SETTINGS = {"posrec-plus": {"item_dropout": 0.1, "repeat_dropout": 0.2}}
SHOP = (
    "An outdoor shop, simulated: 40,000 sessions over four weeks. The first click sets an "
    "intention, later clicks drift, shoppers come back to what they saw. The log is "
    "{out}/clicks.csv, its items {out}/items.csv.\n"
)
FOUR_MODELS = (
    "What is popular; nearest sessions (STAN); the paper's model (PosRec); and posrec-plus, "
    "which `posrec train` uses unless you name another. The shop's process is known, and with "
    "it the best any recommender can reach.\n"
)
WITH_THE_RUN = """What was just trained recommends, says why, and serves a page to try it on:
  posrec recommend {out}/comparison/posrec-plus SAN1-BLU-2 TEN5-BLK-2 -k 5 --explain
  posrec serve {out}/comparison/posrec-plus
"""
BY_HAND = """The same by hand, as with your own log; the default settings take some minutes more:
  posrec prepare {out}/clicks.csv --format csv --items {out}/items.csv --out {out}/again
  posrec stats {out}/again
  posrec train {out}/again --out runs/first
  posrec evaluate runs/first {out}/again
  posrec recommend runs/first SAN1-BLU-2 TEN5-BLK-2 --explain"""


def tour(out: Path, epochs: int | None, prepare_only: bool) -> None:
    heading("A shop's click log, prepared")
    say(SHOP.format(out=out))
    data = make_demo(out)
    steps = account_table(data.manifest["steps"])
    console.print(steps, "", stats_table(stats(data)), "", sep="\n")
    if not prepare_only:
        heading("Four models, and the best that is possible")
        say(FOUR_MODELS)
        show_models(data, out, {**SETTINGS, "epochs": epochs or SETTINGS["epochs"]})
    heading("Next")
    if not prepare_only:
        say(WITH_THE_RUN.format(out=out))
    say(BY_HAND.format(out=out))


def show_models(data: PreparedDataset, out: Path, settings: dict[str, object]) -> None:
    """What an earlier demo has trained stays until this one is finished."""
    unfinished = out / ".comparison"
    finished = out / "comparison"
    refuse_others_files(finished)
    shutil.rmtree(unfinished, ignore_errors=True)
    with TerminalProgress() as progress:
        result = compare(
            data,
            MODELS,
            unfinished,
            settings,
            progress=progress,
            own_settings=OWN_SETTINGS,
        )
    shutil.rmtree(finished, ignore_errors=True)
    unfinished.rename(finished)
    console.print(comparison_tables(result, data.ceiling), "", sep="\n")
    say(f"A report with plots and all comparisons is in {finished}/report.html.\n")


def refuse_others_files(comparison: Path) -> None:
    """Before the comparison of an earlier demo is replaced."""
    for path in comparison.glob("*"):
        if path.name in MODELS:
            refuse_existing(path, overwrite=True, marker=RUN)
        elif path.name not in (COMPARISON, REPORT):
            raise InputError(
                f"{path} is not of the demo, whose earlier results would be replaced; move it "
                "away, or name another folder with --out"
            )


def heading(text: str) -> None:
    console.rule(Text(text, "bold"), align="left")
