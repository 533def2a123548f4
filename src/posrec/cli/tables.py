"""Tables for the terminal, of what a command computed."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from posrec.errors import plural
from posrec.progress import printable

if TYPE_CHECKING:
    from posrec.experiments.compare import PairedTest
    from posrec.models.registry import ModelSpec

HEIGHTS = "·▁▂▃▄▅▆▇█"  # the first of a day without clicks
SHOWN_DAYS = 730  # the latest; a row for each month


def account_table(steps: list[dict[str, Any]]) -> Table:
    names = ("clicks", "sessions", "items")
    table = Table(
        "step",
        *(Column(name, justify="right") for name in names),
        box=None,
        pad_edge=False,
    )
    table.add_row(steps[0]["step"], *(f"{steps[0][name]:,}" for name in names))
    for step in steps[1:]:
        removed = [step[f"removed_{name}"] for name in names]
        table.add_row(
            f"  {step['step']}",
            *(f"{-count:+,}" if count else "0" for count in removed),
            style="dim",
        )
    table.add_row("left", *(f"{steps[-1][name]:,}" for name in names), style="bold")
    return table


def counts_line(manifest: dict[str, Any]) -> str:
    counts = manifest["counts"]
    parts = []
    for part in ("train", "test"):
        samples = counts[f"{part}_samples"]
        sessions = counts[f"{part}_sessions"]
        parts.append(
            f"{plural(samples, f'{part} sample')} in {plural(sessions, 'session')}"
            if sessions
            else f"no {part} part"
        )
    return f"{', '.join(parts)}; {plural(counts['items'], 'item')}.\nFingerprint {manifest['fingerprint']}."


def stats_table(figures: dict[str, Any]) -> Table:
    headings = (Column(style="bold"), Column(justify="right"), Column(style="dim"))
    table = Table(*headings, box=None, show_header=False, pad_edge=False)
    sessions = figures["train_sessions"] + figures["test_sessions"]
    table.add_row("clicks", f"{figures['clicks']:,}", "")
    for part in ("train", "test"):
        samples = figures[f"{part}_samples"]
        of = figures[f"{part}_sessions"]
        table.add_row(f"{part} samples", f"{samples:,}", f"in {plural(of, 'session')}")
    table.add_row(
        "validation",
        f"{figures['validation_sessions']:,}",
        "the latest training sessions",
    )
    recommendable = figures.get("recommendable_items", figures["train_items"])
    others = {
        "in the items file alone": recommendable - figures["train_items"],
        "in the test part alone": figures["items"] - recommendable,
    }
    note = ", ".join(
        f"{count:,} of them {where}" for where, count in others.items() if count
    )
    table.add_row("items", f"{figures['items']:,}", note)
    note = f"clicks a sample with its target; {figures['average_session_length']:.2f} a session"
    table.add_row("average length", f"{figures['average_length']:.2f}", note)
    spread = ", ".join(
        f"{share} % up to {length}"
        for share, length in figures["length_percentiles"].items()
    )
    table.add_row("longest session", f"{figures['longest']:,}", spread)
    repeating = figures["repeating_sessions"]
    table.add_row(
        "repeat an item", f"{repeating:,}", f"sessions, {repeating / sessions:.1%}"
    )
    popularity = figures["popularity"]
    shares = ", ".join(
        f"top {top} take {share:.0%}"
        for top, share in popularity["share_of_top"].items()
    )
    table.add_row(
        "popularity", f"{popularity['gini']:.2f}", f"Gini; {shares} of the clicks"
    )
    table.add_row("fingerprint", "", figures["fingerprint"])
    if by_day := figures["clicks_by_day"]:
        days = list(by_day)
        table.add_row(
            "days with clicks",
            f"{len(days):,}",
            f"{days[0]} to {days[-1]}; a sign a day, by clicks:",
        )
        for month, dates in groupby(
            days[-SHOWN_DAYS:], key=lambda date: date.rpartition("-")[0]
        ):
            clicks = {int(date[-2:]): by_day[date] for date in dates}
            levels = (
                clicks.get(day, 0) / max(by_day.values())
                for day in range(1, max(clicks) + 1)
            )
            signs = "".join(
                HEIGHTS[math.ceil(level * (len(HEIGHTS) - 1))] for level in levels
            )
            table.add_row(month, f"{sum(clicks.values()):,}", signs)
    most = max(figures["length_histogram"].values())
    for length, count in figures["length_histogram"].items():
        table.add_row(
            f"length {length}",
            f"{count:,}",
            "█" * round(40 * count / most) or ("▏" if count else ""),
        )
    return table


def models_table(catalog: Mapping[str, "ModelSpec"]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, spec in catalog.items():
        table.add_row(Text(name, "bold"), spec.about)
    return table


def settings_table(
    title: str, own: list[tuple[str, Any, str]], training: list[tuple[str, Any, str]]
) -> Group:
    parts: list[str | Table] = [title]
    for name, settings in (("setting", own), ("of training", training)):
        headings = (
            Column(heading, overflow="fold") for heading in (name, "default", "meaning")
        )
        table = Table(*headings, box=None, pad_edge=False)
        for key, default, description in settings:
            table.add_row(
                Text(key, "bold"), str(default), without_markdown(description)
            )
        if settings:
            parts += ["", table]
    return Group(*parts)


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
    rows: dict[str, dict[str, float]], ceiling: dict[str, Any] | None = None
) -> Table:
    """A row a model, in percent, with the best attainable under it where it is known."""
    table = Table("%", box=None, pad_edge=False, caption=LEGEND, caption_justify="left")
    shown = [name for name in next(iter(rows.values())) if not name.startswith("ndcg")]
    for name in shown:
        short = (
            name.replace("recall", "R")
            .replace("mrr", "M")
            .replace("coverage", "cov")
            .replace("popularity", "pop")
        )
        table.add_column(short, justify="right")
    for model, metrics in rows.items():
        table.add_row(
            Text(printable(model), "bold"),
            *(f"{100 * metrics[name]:.2f}" for name in shown),
        )
    if ceiling is not None:
        best = (
            f"{100 * ceiling[name]:.2f}" if name in ceiling else "" for name in shown
        )
        table.add_row("best attainable", *best, style="dim")
    return table


def best_table(pairs: "Sequence[PairedTest]") -> Table:
    """The best model of each metric, first in its pairs, against every other one, in percent."""
    # One space between columns: the longest name of a model and the longest verdict fit 80
    # characters.
    figures = (
        Column(name, justify="right", no_wrap=True)
        for name in ("difference", "95 % interval", "p")
    )
    verdicts = Column(no_wrap=True)
    table = Table(
        "the best against",
        *figures,
        verdicts,
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    metric = None
    for pair in pairs:
        if pair.metric != metric:
            metric = pair.metric
            table.add_row(Text(printable(f"{metric}: {pair.first}"), "bold"))
        tested = pair.comparison
        interval = f"{100 * tested.low:+.2f} to {100 * tested.high:+.2f}"
        verdict = pair.verdict.removeprefix(f"{pair.first} is ")
        table.add_row(
            f"  {pair.second}",
            f"{100 * tested.difference:+.2f}",
            interval,
            pair.p_text,
            verdict,
        )
    return table


def doctor_table(found: dict[str, Any]) -> Table:
    gib = 2**30
    table = Table(
        Column(no_wrap=True),
        Column(overflow="fold"),
        box=None,
        pad_edge=False,
        show_header=False,
    )
    for name in ("posrec", "python", "system"):
        table.add_row(name, found[name])
    cores = f"{found['cores']} usable cores"
    threads = plural(found["threads"], "thread")
    table.add_row(
        "CPU", f"{cores}, {threads}, {found['memory'] / gib:.1f} GiB of memory"
    )
    table.add_row("GPU", "; ".join(found["gpus"]) or "none; posrec computes on the CPU")
    table.add_row("disk", f"{found['free_disk'] / gib:.1f} GiB free in this folder")
    for package in found["required"]:
        installed = package["version"] or "not installed"
        wanted = package["wanted"] or "any"
        table.add_row(package["name"], f"{installed} (posrec needs {wanted})")
    for extra in found["extras"]:
        install = f"pip install 'posrec[{extra['name']}]' for {extra['gives']}"
        table.add_row(
            f"extra {extra['name']}", install if extra["missing"] else "installed"
        )
    for problem in found["problems"] or ["none found"]:
        table.add_row("problem" if found["problems"] else "problems", problem)
    return table
