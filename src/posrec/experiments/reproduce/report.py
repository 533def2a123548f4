"""The report as one HTML file that needs nothing else, and as Markdown: templates filled with the results."""

from typing import Any

from posrec.experiments.rendering import render
from posrec.experiments.reproduce import sentences
from posrec.experiments.reproduce.claims import FAILED, HELD, SHORT, UNCLEAR, signed
from posrec.experiments.reproduce.figures import encoding_pictures, learned_encodings_sentences, panels
from posrec.experiments.reproduce.grid import EXPERIMENTS, FIGURES, Experiment
from posrec.experiments.reproduce.paper import METRICS
from posrec.experiments.reproduce.results import Results
from posrec.experiments.reproduce.tables import Table

CLASSES = {HELD: "held", FAILED: "failed", UNCLEAR: "unclear"}  # of the style sheet


def html_report(results: Results) -> str:
    return render(
        "reproduce.html.j2",
        **values(results),
        classes=CLASSES,
        panels=panels,
        pictures=encoding_pictures(results) if results.shows_encodings else [],
    )


def markdown_report(results: Results) -> str:
    return render("reproduce.md.j2", **values(results))


def values(results: Results) -> dict[str, Any]:
    """What both templates use."""
    return {
        "results": results,
        "sentences": sentences,
        "experiments": experiments(results),
        "figures": FIGURES,
        "learned": learned_encodings_sentences(results) if results.shows_encodings else [],
        "metrics": METRICS,
        "short": SHORT,
        "signed": signed,
        "infinity": float("inf"),
    }


def experiments(results: Results) -> list[tuple[Experiment, list[Table]]]:
    """The experiments that have tables, each with a table for every dataset."""
    found = [(one, [table for table in results.tables if table.experiment is one]) for one in EXPERIMENTS.values()]
    return [(experiment, tables) for experiment, tables in found if tables]
