"""Tables for the terminal, of what a command computed."""

import math
import re
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from posrec.cli.printing import plain_table, right
from posrec.doctor import GIB
from posrec.errors import plural
from posrec.progress import printable

if TYPE_CHECKING:
    from posrec.evaluation.evaluate import Evaluation
    from posrec.evaluation.significance import PairedTest
    from posrec.evaluation.windows import Windows
    from posrec.experiments.compare import ComparisonResult
    from posrec.experiments.positions import PositionsResult
    from posrec.experiments.tune import Tuned
    from posrec.models.registry import ModelSpec

SHORT = {"recall": "R", "mrr": "M", "coverage": "cov", "popularity": "pop"}
HEIGHTS = "·▁▂▃▄▅▆▇█"  # the first is for a day without clicks
SHOWN_DAYS = 730  # the latest; a row for each month


def account_table(steps: list[dict[str, Any]]) -> Table:
    names = ("clicks", "sessions", "items")
    table = plain_table("step", *(Column(name, justify="right") for name in names))
    table.add_row(steps[0]["step"], *(f"{steps[0][name]:,}" for name in names))
    for step in steps[1:]:
        removed = [step[f"removed_{name}"] for name in names]
        cells = [f"{-count:+,}" if count else "0" for count in removed]
        table.add_row(f"  {step['step']}", *cells, style="dim")
    table.add_row("left", *(f"{steps[-1][name]:,}" for name in names), style="bold")
    return table


def counts_line(manifest: dict[str, Any]) -> str:
    counts = manifest["counts"]
    sizes = []
    for split in ("train", "test"):
        samples = plural(counts[f"{split}_samples"], f"{split} sample")
        sessions = counts[f"{split}_sessions"]
        part = f"{samples} in {plural(sessions, 'session')}"
        sizes.append(part if sessions else f"no {split} part")
    items = plural(counts["items"], "item")
    return f"{', '.join(sizes)}; {items}.\nFingerprint {manifest['fingerprint']}."


def stats_table(figures: dict[str, Any]) -> Table:
    headings = (Column(style="bold"), Column(justify="right"), Column(style="dim"))
    table = plain_table(*headings, show_header=False)
    table.add_row("clicks", f"{figures['clicks']:,}")
    for split in ("train", "test"):
        samples = f"{figures[f'{split}_samples']:,}"
        sessions = plural(figures[f"{split}_sessions"], "session")
        table.add_row(f"{split} samples", samples, f"in {sessions}")
    validation = f"{figures['validation_sessions']:,}"
    table.add_row("validation", validation, "the latest training sessions")
    table.add_row("items", f"{figures['items']:,}", items_note(figures))
    if new_clicks := figures["new_item_clicks"]:
        share = new_clicks / figures["full_test_clicks"]
        note = f"test clicks on items that training did not see, {share:.1%}"
        table.add_row("new items", f"{new_clicks:,}", note)
    per_session = f"{figures['average_session_length']:.2f} a session"
    note = f"clicks a sample with its target; {per_session}"
    table.add_row("average length", f"{figures['average_length']:.2f}", note)
    percentiles = figures["length_percentiles"].items()
    spread = ", ".join(f"{share} % up to {length}" for share, length in percentiles)
    table.add_row("longest session", f"{figures['longest']:,}", spread)
    repeating = figures["repeating_sessions"]
    share = repeating / (figures["train_sessions"] + figures["test_sessions"])
    table.add_row("repeat an item", f"{repeating:,}", f"sessions, {share:.1%}")
    popularity = figures["popularity"]
    top_items = popularity["share_of_top"].items()
    shares = ", ".join(f"top {top} take {share:.0%}" for top, share in top_items)
    note = f"Gini; {shares} of the clicks"
    table.add_row("popularity", f"{popularity['gini']:.2f}", note)
    table.add_row("fingerprint", "", figures["fingerprint"])
    add_days(table, figures["clicks_by_day"])
    most = max(figures["length_histogram"].values())
    for length, count in figures["length_histogram"].items():
        bar = "█" * round(40 * count / most)
        table.add_row(f"length {length}", f"{count:,}", bar or ("▏" if count else ""))
    return table


def items_note(figures: dict[str, Any]) -> str:
    recommendable = figures.get("recommendable_items", figures["train_items"])
    elsewhere = {
        "items file": recommendable - figures["train_items"],
        "test part": figures["items"] - recommendable,
    }
    notes = [
        f"{count:,} of them in the {where} alone"
        for where, count in elsewhere.items()
        if count
    ]
    return ", ".join(notes)


def add_days(table: Table, by_day: dict[str, int]) -> None:
    """A row for each month, with a sign for each of its days."""
    if not by_day:
        return
    days = list(by_day)
    note = f"{days[0]} to {days[-1]}; a sign a day, by clicks:"
    table.add_row("days with clicks", f"{len(days):,}", note)
    most = max(by_day.values())
    shown = days[-SHOWN_DAYS:]
    for month, dates in groupby(shown, key=lambda date: date.rpartition("-")[0]):
        clicks = {int(date[-2:]): by_day[date] for date in dates}
        signs = ""
        for day in range(1, max(clicks) + 1):
            level = clicks.get(day, 0) / most
            signs += HEIGHTS[math.ceil(level * (len(HEIGHTS) - 1))]
        table.add_row(month, f"{sum(clicks.values()):,}", signs)


def models_table(catalog: Mapping[str, "ModelSpec"]) -> Table:
    table = plain_table(show_header=False)
    for name, spec in catalog.items():
        table.add_row(Text(name, "bold"), spec.about)
    return table


def settings_table(name: str, settings: list[tuple[str, Any, str]]) -> Table:
    headings = (name, "default", "meaning")
    table = plain_table(*(Column(heading, overflow="fold") for heading in headings))
    for key, default, description in settings:
        meaning = without_markdown(description)
        table.add_row(Text(key, "bold"), str(default), meaning)
    return table


def without_markdown(text: str) -> str:
    """
    >>> without_markdown("see [the page](terms.md) of `posrec models` ([more](models.md))")
    'see the page of posrec models'
    """
    text = re.sub(r" ?\(\[[^\]]*\]\([^)]*\)\)", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


LEGEND = (
    "R@K: share of test clicks whose item is among the first K\n"
    "M@K: mean of 1 / rank, with 0 for a rank past K\n"
    "cov: share of all items that are in any list\n"
    "pop: mean popularity in the lists, 100: most clicked item"
)


def metrics_table(
    rows: dict[str, dict[str, float]],
    ceiling: dict[str, Any] | None = None,
    legend: str = LEGEND,
) -> Table:
    """A row a model, in percent, with the best attainable under it where it is known."""
    table = plain_table("%", caption=legend, caption_justify="left")
    shown = [name for name in next(iter(rows.values())) if not name.startswith("ndcg")]
    for name in shown:
        metric, _, cutoff = name.partition("@")
        table.add_column(f"{SHORT[metric]}@{cutoff}", justify="right")
    for model, metrics in rows.items():
        cells = [f"{100 * metrics[name]:.2f}" for name in shown]
        table.add_row(Text(printable(model), "bold"), *cells)
    if ceiling is not None:
        best = [
            f"{100 * ceiling[name]:.2f}" if name in ceiling else "" for name in shown
        ]
        table.add_row("best attainable", *best, style="dim")
    return table


def novelty_table(by_model: dict[str, dict[str, dict[str, float]]]) -> Group:
    """By how often training saw the target, and over all clicks; in percent."""
    table = plain_table("%", "", *right("known", "rare", "new", "all clicks"))
    for groups in [*by_model.values()][:1]:
        counts = (f"{group['samples']:,}" for group in groups.values())
        table.add_row("samples", "", *counts, style="dim")
    for model, groups in by_model.items():
        name = printable(model)
        for metric, short in (("recall@20", "R@20"), ("mrr@20", "M@20")):
            shares = (group.get(metric) for group in groups.values())
            cells = ("" if x is None else f"{100 * x:.2f}" for x in shares)
            table.add_row(Text(name, "bold"), short, *cells)
            name = ""
    legend = "known, rare, new: target with 10 or more, 1 to 9, no training clicks"
    return Group(table, Text(legend, "table.caption"))


def evaluation_tables(
    model: str, evaluation: "Evaluation", ceiling: dict[str, Any] | None
) -> Group:
    metrics = metrics_table({model: evaluation.metrics}, ceiling)
    return Group(metrics, "", novelty_table({model: evaluation.by_novelty}))


def parts_table(windows: dict[str, Any]) -> Table:
    """A row for each window of `posrec evaluate`, then their mean and spread."""
    metrics = windows["mean"]
    rows = {}
    for number, window in enumerate(windows["each"], start=1):
        begins = f", {window['begins']} UTC" if window["begins"] else ""
        rows[f"window {number}{begins}"] = {name: window[name] for name in metrics}
    rows |= {"mean": metrics, "spread": windows["spread"]}
    return metrics_table(rows, legend="spread: standard deviation between windows")


def comparison_tables(
    result: "ComparisonResult", ceiling: dict[str, Any] | None
) -> Group:
    metrics = metrics_table(result.metrics, ceiling)
    novelty = novelty_table(result.by_novelty)
    tables = Group(metrics, "", novelty, "", best_table(result.pairs_with_best()))
    if result.windows is None:
        return tables
    return Group(tables, "", windows_table(result.windows))


def windows_table(windows: "Windows") -> Table:
    """By metric the model with the best mean, and below it every other one, in percent."""
    count = len(windows.each)
    figures = right("mean", "spread", "best is ahead", "shown", "p")
    legend = (
        "spread: standard deviation between windows\n"
        "shown: by the paired test over the sessions of a window\n"
        "p: sign test over windows, for this pair alone"
    )
    table = plain_table(
        f"{count} windows, %", *figures, caption=legend, caption_justify="left"
    )

    def add_row(label: str | Text, model: str, metric: str, *cells: str) -> None:
        means = (windows.mean[model][metric], windows.spread[model][metric])
        table.add_row(label, *(f"{100 * figure:.2f}" for figure in means), *cells)

    metric = None
    for lead in windows.leads:
        if lead.metric != metric:
            metric = lead.metric
            label = Text(printable(f"{metric}: {lead.best}"), "bold")
            add_row(label, lead.best, metric)
        ahead = f"in {lead.ahead} of {count}"
        tests = zip(lead.differences, lead.shown, strict=True)
        shown = f"in {sum(shown and value > 0 for value, shown in tests)}"
        name = f"  {printable(lead.other)}"
        add_row(name, lead.other, metric, ahead, shown, f"{lead.p:.3f}")
    return table


def best_table(pairs: "list[PairedTest]") -> Table:
    """The best model of each metric, first in its pairs, against every other one, in percent."""
    # One space between columns, so that the longest name and verdict fit into 80 characters.
    figures = right("difference", "95 % interval", "p")
    verdicts = Column(no_wrap=True)
    table = plain_table("the best against", *figures, verdicts, padding=(0, 1, 0, 0))
    metric = None
    for pair in pairs:
        if pair.metric != metric:
            metric = pair.metric
            table.add_row(Text(printable(f"{metric}: {pair.first}"), "bold"))
        tested = pair.comparison
        difference = f"{100 * tested.difference:+.2f}"
        interval = f"{100 * tested.low:+.2f} to {100 * tested.high:+.2f}"
        verdict = pair.verdict.removeprefix(f"{pair.first} is ")
        table.add_row(f"  {pair.second}", difference, interval, pair.p_text, verdict)
    return table


def positions_tables(result: "PositionsResult") -> Group:
    """The metrics of each row of `posrec positions`, and the gains between them, in percent."""
    from posrec.experiments.positions import ROWS

    metrics = plain_table("%", "what PosRec is told", *right("R@20", "M@20"))
    for row, meaning in ROWS.items():
        figures = result.metrics[row]
        cells = [f"{100 * figures[name]:.2f}" for name in ("recall@20", "mrr@20")]
        metrics.add_row(Text(row, "bold"), meaning, *cells)
    gains = plain_table("what is gained by", *right("points", "95 % interval", "p"))
    metric = None
    for worth in result.worths:
        if worth.metric != metric:
            metric = worth.metric
            gains.add_row(Text(metric, "bold"))
        low = worth.points - worth.margin
        high = worth.points + worth.margin
        interval = f"{low:+.2f} to {high:+.2f}"
        p = "< 0.001" if worth.p < 0.001 else f"{worth.p:.3f}"
        gains.add_row(f"  {worth.question}", f"{worth.points:+.2f}", interval, p)
    return Group(metrics, "", gains)


def tuning_table(tuned: "dict[str, Tuned]", seed: int) -> Group:
    """A row a model, with what its trials were and the best of them."""
    metric = next(iter(tuned.values())).metric
    names = ("trials", "stopped", "failed", "default", "best", "seconds")
    table = plain_table("", *right(*names))
    for model, outcome in tuned.items():
        value = outcome.default_value
        cells = [
            str(outcome.trials),
            str(outcome.pruned),
            str(outcome.failed),
            "not tried" if value is None else f"{100 * value:.2f}",
            f"{100 * outcome.value:.2f}",
            f"{outcome.seconds:,.0f}",
        ]
        table.add_row(Text(printable(model), "bold"), *cells)
    legend = (
        f"default, best: {metric} on validation, in percent, of trials with seed {seed}\n"
        "stopped: early, below the median of the model's other trials"
    )
    return Group(table, Text(legend, "table.caption"))


def doctor_table(found: dict[str, Any]) -> Table:
    headings = (Column(no_wrap=True), Column(overflow="fold"))
    table = plain_table(*headings, show_header=False)
    for name in ("posrec", "python", "system"):
        table.add_row(name, found[name])
    cores = f"{found['cores']} usable cores"
    threads = plural(found["threads"], "thread")
    memory = f"{found['memory'] / GIB:.1f} GiB of memory"
    table.add_row("CPU", f"{cores}, {threads}, {memory}")
    table.add_row("GPU", "; ".join(found["gpus"]) or "none; posrec computes on the CPU")
    table.add_row("disk", f"{found['free_disk'] / GIB:.1f} GiB free in this folder")
    for package in found["required"]:
        installed = package["version"] or "not installed"
        wanted = package["wanted"] or "any"
        table.add_row(package["name"], f"{installed} (posrec needs {wanted})")
    for extra in found["extras"]:
        state = "installed"
        if extra["missing"]:
            state = f"pip install 'posrec[{extra['name']}]' for {extra['gives']}"
        table.add_row(f"extra {extra['name']}", state)
    for problem in found["problems"] or ["none found"]:
        table.add_row("problem" if found["problems"] else "problems", problem)
    return table
