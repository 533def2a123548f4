"""The figures that the pages show are those of results/: a table is not left behind when a run is done again."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from tests.helpers import ROOT

RESULTS = ROOT / "results"
DATASETS = ("diginetica", "yoochoose1_64")
AT_TEN = ("recall@10", "mrr@10")
AT_TWENTY = ("recall@20", "mrr@20")
METRICS = ("recall@5", "recall@10", "mrr@5", "mrr@10")


def table(page: Path, heading: str) -> dict[str, list[str]]:
    """The first table under a heading: the cells of each row by its name, empty ones and bold marks left out."""
    under = page.read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1]
    lines = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", under, re.MULTILINE)
    assert lines, heading
    rows = [[cell.strip().replace("**", "") for cell in line.strip("|\n").split("|")] for line in lines[1].splitlines()]
    return {name: [cell for cell in cells if cell] for name, *cells in rows}


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], dict[str, Any]]:
    """Each table's rows by its experiment and dataset."""
    summary = json.loads((RESULTS / "reproduction" / "summary.json").read_text(encoding="utf-8"))
    return {(one["experiment"], one["dataset"]): one["rows"] for one in summary["tables"]}


@pytest.fixture(scope="module")
def seconds() -> dict[tuple[str, str], str]:
    """As pages show them: what has become faster since is a bound."""
    epochs = json.loads((RESULTS / "epochs.json").read_text(encoding="utf-8"))["rows"]
    bounds = {True: "≤ ", False: ""}
    return {
        (row["dataset"], row["model"]): f"{bounds['before_the_shorter_last_layer' in row]}{row['seconds']:.2f}"
        for row in epochs
    }


def spread(figures: list[float]) -> str:
    """Mean, and deviation where there is one."""
    return " ± ".join(f"{figure:.2f}" for figure in figures)


def named(label: str) -> str:
    return {"GRU4REC": "GRU4Rec"}.get(label, label)


def test_the_headline_table(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    shown = headline()
    counting = json.loads((RESULTS / "counting.json").read_text(encoding="utf-8"))["rows"]
    found = {(row["dataset"], row["model"]): row["metrics"] for row in counting if len(row["command"].split()) == 7}
    for name, model in (("STAN", "stan"), ("coclick", "coclick")):
        assert shown[name] == [f"{found[dataset, model][metric]:.2f}" for dataset in DATASETS for metric in AT_TWENTY]
    for label in ("PosRec", "NARM"):
        found_rows = [rows["overall", dataset][label] for dataset in DATASETS]
        assert shown[label] == [f"{row[metric][0]:.2f}" for row in found_rows for metric in AT_TWENTY]
    posrec = [rows["overall", dataset]["PosRec"] for dataset in DATASETS]
    ours, papers = ([row["recall@10"][0] for row in posrec], [row["paper"]["recall@10"][0] for row in posrec])
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"R@10 of {ours[0]:.2f} and {ours[1]:.2f}; the paper has {papers[0]:.2f} and {papers[1]:.2f}" in text


def plus() -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of results/posrec_plus.json by dataset and name."""
    rows = json.loads((RESULTS / "posrec_plus.json").read_text(encoding="utf-8"))["rows"]
    return {(row["dataset"], row["row"]): row for row in rows}


def test_the_tables_of_posrec_plus() -> None:
    found, page = plus(), ROOT / "docs" / "models_plus.md"
    shown = table(page, "What it reaches")
    for name, cells in shown.items():
        if name == "best published":
            assert cells == headline()["best published on these splits"]
            continue
        rows = [found[dataset, {"coclick": "co-clicks"}.get(name, name)] for dataset in DATASETS]
        of_seeds = [row["by_seed"][metric] for row in rows for metric in AT_TWENTY]
        assert cells == [spread([fmean(one), stdev(one)] if len(one) > 1 else one) for one in of_seeds], name
    assert headline()["posrec-plus"] == [cell.partition(" ")[0] for cell in shown["posrec-plus"]]
    removed = table(page, "What each part is worth")
    assert {f"without {name}" for name in removed} == {name for _, name in found if name.startswith("without")}
    for name, cells in removed.items():
        lower = [found[dataset, f"without {name}"]["lower_than"] for dataset in DATASETS]
        tests = [one[metric] for one in lower for metric in AT_TWENTY]
        assert cells == [f"{-one['by']:+.2f} ± {one['margin']:.2f}" for one in tests], name
        line = next(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
        assert [cell.strip().startswith("**") for cell in line.split("|")[2:6]] == [one["p"] < 0.05 for one in tests]


def test_times_of_trainings() -> None:
    rows = json.loads((RESULTS / "training_time.json").read_text(encoding="utf-8"))
    by_name = {(row["model"], row["settings"].get("batch_size")): row for row in rows}
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, key in (
        ("PosRec, batch 100", ("posrec", None)),
        ("PosRec, batch 1,024", ("posrec", "1024")),
        ("posrec-plus, `refit`", ("posrec-plus", None)),
    ):
        row = by_name[key]
        total = fmean(row["total_seconds"][1:] or row["total_seconds"])
        r10, m10 = (fmean(row["metrics"][metric]) for metric in AT_TEN)
        assert (
            f"| {name} | {row['epoch_seconds']:.2f} | {fmean(row['training_seconds']):.1f} s | {total:.0f} s | "
            f"{row['peak_gb']:.1f} GB | {r10:.2f} | {m10:.2f} |"
        ) in page
    seconds = f"{by_name['posrec-plus', None]['total_seconds'][0]:.0f} s"
    assert f"evaluated | {seconds} |" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{seconds} in all" in (ROOT / "docs" / "which_model.md").read_text(encoding="utf-8")


def test_nights() -> None:
    models = json.loads((RESULTS / "warm_start.json").read_text(encoding="utf-8"))["models"]
    shown = table(ROOT / "docs" / "performance.md", "Nightly retraining")
    means = [models[model]["mean"] for model in ("posrec", "posrec-plus")]
    for name, kind in (
        ("from scratch every night", "scratch"),
        ("started from the night before", "warm"),
        ("the run of the night before, not trained", "no training"),
    ):
        assert shown[name] == [f"{mean[f'{kind} {metric}']:.2f}" for mean in means for metric in AT_TWENTY]
    shares = [f"{100 * mean['share of steps']:.1f} %" for mean in means]
    assert shown["steps of a night, as a share of those from scratch"] == shares
    warm, scratch = (f"{means[1][f'{kind} recall@20']:.2f}" for kind in ("warm", "scratch"))
    figures = f"{shares[1]} of the steps from scratch, R@20 {warm} instead of {scratch}"
    assert figures in (ROOT / "README.md").read_text(encoding="utf-8")


def test_kernels_of_a_step() -> None:
    found = {row["model"]: row for row in json.loads((RESULTS / "kernels.json").read_text(encoding="utf-8"))}
    shown = table(ROOT / "docs" / "performance.md", "On a GPU")
    for name, cells in shown.items():
        kernels = [one for row in found.values() for one in row["kernels"] if one["kind"] == name]
        assert cells == [f"{one[key]:.0f}" for one in kernels for key in ("microseconds", "launches")], name
    assert len(shown) == len({one["kind"] for row in found.values() for one in row["kernels"]})


def headline() -> dict[str, list[str]]:
    """Rows by the name of the model, without what is said about it."""
    return {name.partition(",")[0]: cells for name, cells in table(ROOT / "README.md", "Figures").items()}


def test_the_headline_speeds(seconds: dict[tuple[str, str], str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command, prepared, served = (
        json.loads((RESULTS / name).read_text()) for name in ("command.json", "prepare.json", "serve.json")
    )
    load, recipe = served["loads"]["1000 a second"], prepared["contenders"]["clean"]
    warm = sorted(round(taken) for taken in command["seconds"][1:])
    for figures in (
        f"| {seconds['diginetica', 'posrec']} s |",
        f"| {' to '.join(dict.fromkeys(map(str, (warm[0], warm[-1]))))} s |",
        f"| {recipe['seconds']:.0f} s, {recipe['times_the_barest']:.1f} times",
        f"| p50 {load['p50_ms']:.0f} ms, p90 {load['p90_ms']:.0f} ms |",
    ):
        assert figures in text


def test_the_table_of_models(rows: dict[tuple[str, str], dict[str, Any]], seconds: dict[tuple[str, str], str]) -> None:
    shown = table(ROOT / "docs" / "models.md", "What they reach")
    for label in rows["overall", "diginetica"]:
        expected = []
        for row in (rows["overall", dataset][label] for dataset in DATASETS):
            for metric in AT_TEN:
                expected += [spread(row[metric]), *([f"{row['paper'][metric][0]:.2f}"] if row["paper"] else [])]
        model = label.lower().replace("-", "")
        expected += [seconds["diginetica", model]] if ("diginetica", model) in seconds else []
        assert shown[named(label)] == expected, label


def test_the_speed_of_counting_models() -> None:
    found = json.loads((RESULTS / "neighbours.json").read_text(encoding="utf-8"))
    page = ROOT / "docs" / "models.md"
    expected = {
        name: [
            f"{one['count']['seconds']:.2f}", f"{one['evaluate']['seconds']:.1f}",
            f"{one['evaluate']['cpu_seconds']:.1f}", f"{one['one_session']['median_ms']:.2f}",
            f"{one['one_session']['p95_ms']:.2f}",
        ]
        for name, one in found["models"].items()
    }  # fmt: skip
    assert table(page, "Speed of the counting models") == expected
    assert f"take {found['floor']['seconds']:.1f} s of each" in page.read_text(encoding="utf-8")


def test_the_figures_behind_the_choice_of_a_model(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    counting = json.loads((RESULTS / "counting.json").read_text(encoding="utf-8"))["rows"]
    found = {
        (dataset, label.lower().replace("-", "")): {metric: row[metric][0] for metric in AT_TEN}
        for dataset in DATASETS
        for label, row in rows["overall", dataset].items()
    }
    found |= {(row["dataset"], row["model"]): row["metrics"] for row in counting if row["model"] == "coclick"}
    found |= {(dataset, "posrec-plus"): row["mean"] for (dataset, name), row in plus().items() if name == "posrec-plus"}
    shown = table(ROOT / "docs" / "which_model.md", "The figures behind it")
    assert len(shown) == 8
    for model, cells in shown.items():
        assert cells == [f"{found[dataset, model][metric]:.2f}" for dataset in DATASETS for metric in AT_TEN], model
    seconds = [row["seconds"] for row in json.loads((RESULTS / "epochs.json").read_text())["rows"]
               if row["dataset"] == "diginetica"]  # fmt: skip
    text = (ROOT / "docs" / "which_model.md").read_text(encoding="utf-8")
    assert f"{min(seconds)} to {max(seconds)} s" in text
    new = json.loads((RESULTS / "new_items.json").read_text())["models"]
    assert f"finds {new['with']['new']['recall@20'][0]:.0f} % of clicks on unseen items" in text
    assert new["without"]["new"]["recall@20"] == [0, 0]


def test_posrecs_own_figures(rows: dict[tuple[str, str], dict[str, Any]], seconds: dict[tuple[str, str], str]) -> None:
    shown = table(ROOT / "docs" / "performance.md", "PosRec under the paper's protocol")
    for dataset, title in zip(DATASETS, ("Diginetica", "Yoochoose 1/64"), strict=True):
        figures = [spread(rows["overall", dataset]["PosRec"][metric]) for metric in METRICS]
        assert shown[title] == [*figures, seconds[dataset, "posrec"]]


def test_what_choices_are_worth(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Single seeds from the records of their jobs, rows with ± from the report."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    records = json.loads((RESULTS / "accuracy.json").read_text(encoding="utf-8"))["records"]
    usual = ("lambda2", 0.5)  # of PosRec on Yoochoose
    found = {
        (one["dataset"], *(setting for setting in one["settings"].items() if setting != usual)): one["metrics"]
        for one in records
    }
    named = {
        "feed-forward of d, not 4d": ("feed_forward", 1), "1 head, not 2": ("heads", 1), "10 heads": ("heads", 10),
        "no l2": ("l2", 0), "l2 of 1e-4, not 1e-5": ("l2", 0.0001),
        "first weights normal of deviation 0.1": ("start", "normal"),
        "weights of the graph normalised": ("normalize", True), "the latest 69 clicks, not 20": ("max_length", 69),
        "bf16": ("precision", "bf16"), "fp32": ("precision", "fp32"),
    }  # fmt: skip
    expected = {
        name: [f"{found[dataset, setting][metric]:.2f}" for dataset in DATASETS for metric in AT_TEN]
        for name, setting in named.items()
    }
    means = {
        "as above": ("overall", "PosRec"), "no anchors": ("anchors", "PosRec-ANC"),
        "no positional encoding": ("encodings", "none"),
        "lambda2 of 0.25 (above: 1 and 0.5)": ("sensitivity", "λ2 = 0.25"),
    }  # fmt: skip
    expected |= {
        name: [spread(rows[experiment, dataset][label][metric]) for dataset in DATASETS for metric in AT_TEN]
        for name, (experiment, label) in means.items()
    }
    assert len(found) == 2 * len(named)
    for name, figures in expected.items():
        assert f"| {name} | {' | '.join(figures)} |" in text, name
