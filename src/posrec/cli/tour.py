"""The tour of `posrec demo`: prepare, train, evaluate, compare and report, step by step on the demo shop."""

import shutil
from pathlib import Path

from rich.text import Text

from posrec.cli.printing import console, say
from posrec.cli.tables import account_table, best_table, metrics_table, sessions_table, stats_table
from posrec.data.dataset import PreparedDataset
from posrec.data.stats import stats
from posrec.demo.shop import make_demo
from posrec.experiments.compare import compare
from posrec.progress import Progress

MODELS = ["pop", "stan", "posrec", "posrec-plus"]
# Smaller models than the defaults and larger steps, so that two CPU cores are done in under three minutes.
SETTINGS = {"d": 64, "batch_size": 512, "learning_rate": 0.006, "epochs": 4, "protocol": "paper"}
# The shop has hundreds of clicks for each item, so there is little to learn by heart.
OWN_SETTINGS = {"posrec-plus": {"item_dropout": 0.1, "repeat_dropout": 0.2}}


def show_shop(out: Path) -> PreparedDataset:
    """Make the shop's log, prepare it, and show what it holds and how good a recommender could get on it."""
    heading("A shop's click log")
    say(
        "An outdoor shop, simulated: 40,000 sessions over four weeks. The first click sets an intention, later clicks "
        f"drift, shoppers come back to what they saw. The log is {out}/clicks.csv, its items {out}/items.csv.\n"
    )
    data = make_demo(out)
    heading("Prepared")
    console.print(account_table(data.manifest["steps"]), "", stats_table(stats(data)), "", sep="\n")
    heading("Two of the test sessions")
    console.print(sessions_table(data, (10, 12)), "")
    heading("How good can it get?")
    say("The shop's process is known, so the best any recommender can reach on the test part is computed:\n")
    best = {name: value for name, value in (data.ceiling or {}).items() if "@" in name}
    console.print(metrics_table({"best attainable": best}), "")
    return data


def show_models(data: PreparedDataset, out: Path, progress: Progress, epochs: int | None) -> None:
    """Train PosRec and posrec-plus, compare them with models that only count, and say where everything is."""
    heading("Four models, and the best that is possible")
    say(
        "What is popular; nearest sessions (STAN); the paper's model (PosRec); and posrec-plus, which `posrec train` "
        "uses unless you name another.\n"
    )
    # What an earlier demo has trained stays until this one is finished.
    unfinished, finished = out / ".comparison", out / "comparison"
    shutil.rmtree(unfinished, ignore_errors=True)
    settings = {**SETTINGS, "epochs": epochs or SETTINGS["epochs"]}
    result = compare(data, MODELS, unfinished, settings, progress=progress, own_settings=OWN_SETTINGS)
    shutil.rmtree(finished, ignore_errors=True)
    unfinished.rename(finished)
    metrics, tests = metrics_table(result.metrics, data.ceiling), best_table(result.pairs_with_best())
    console.print(metrics, "", tests, "", sep="\n")
    say(f"A report with plots and all comparisons is in {out}/comparison/report.html.\n")


def show_next(out: Path, trained: bool) -> None:
    """Commands to go on with; those that use the run where there is one."""
    heading("Next")
    session = "SAN1-BLU-2 TEN5-BLK-2"
    with_the_run = [
        "What was just trained recommends, says why, and serves a page to try it on:",
        f"  posrec recommend {out}/comparison/posrec-plus {session} -k 5 --explain",
        f"  posrec serve {out}/comparison/posrec-plus",
        "",
    ]
    by_hand = [
        "The same by hand, as with your own log; the default settings take some minutes more:",
        f"  posrec prepare {out}/clicks.csv --format csv --items {out}/items.csv --out {out}/again",
        f"  posrec stats {out}/again",
        f"  posrec train {out}/again --out runs/first",
        f"  posrec evaluate runs/first {out}/again",
        f"  posrec recommend runs/first {session} --explain",
    ]
    say("\n".join((with_the_run if trained else []) + by_hand))


def heading(text: str) -> None:
    console.rule(Text(text, "bold"), align="left")
