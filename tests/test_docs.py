"""The commands of the documentation run on small files of the names it uses, docstrings are true,
named files exist."""

import doctest
import functools
import gzip
import json
import pickle
import re
import shlex
import shutil
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import polars as pl
import pytest

from tests.helpers import ROOT, SOURCE, command, small_shop, write_lines, write_log

PAGES = ("preparing.md", "large_logs.md", "datasets.md", "migrating.md")


def commands(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    shown = "".join(
        re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ).replace("\\\n", " ")
    return [line for line in shown.splitlines() if line.startswith("posrec ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    clicks = [(session[1:], item[1:], time) for session, item, time in small_shop(300)]
    days = [datetime.fromtimestamp(time / 1000, UTC) for _, _, time in clicks]
    write_log(folder / "clicks.csv", clicks)
    write_log(folder / "users.csv", clicks, "customer,item_id,timestamp")
    write_lines(
        folder / "visits.txt", ["visit;sku;at", *(f"{s};{i};{t}" for s, i, t in clicks)]
    )
    kinds = ("view", "cart", "purchase")
    actions = [
        f"{s},{i},{t},{kinds[number % 3]}" for number, (s, i, t) in enumerate(clicks)
    ]
    write_lines(folder / "actions.csv", ["session,item,time,action", *actions])
    exported = [f'{{"user_pseudo_id": "{s}.5", "ga_session_id": {s}, "item_id": "{i}", "event_timestamp": {t}, '
                f'"event_name": "view_item"}}' for s, i, t in clicks]  # fmt: skip
    write_lines(folder / "ga4.jsonl", exported)
    write_lines(folder / "items.csv", ["id,title", "1,Tent"])
    columns = {
        name: [click[place] for click in clicks]
        for place, name in enumerate(("visit", "sku", "time"))
    }
    pl.DataFrame(columns).write_parquet(folder / "clicks.parquet")
    (folder / "days").mkdir()
    for day in (1, 2):
        (folder / "days" / f"{day}.csv.gz").write_bytes(
            gzip.compress((folder / "clicks.csv").read_bytes())
        )
    (folder / "hours").mkdir()
    searches = {"event": {"type": "search"}, "user": {"id": 1}, "ts": 1_700_000_000_000}
    for hour in range(24):
        events = [
            {
                "session": {"id": s if int(s) % 5 > 1 else None},
                "user": {"id": s},
                "product": {"sku": i},
            }
            | {"ts": t, "event": {"type": "view"}}
            for s, i, t in clicks[hour::24]
        ]
        hourly = "".join(
            json.dumps(event) + "\n" for event in (events if hour else [searches])
        )
        (folder / "hours" / f"{hour:02}.jsonl.gz").write_bytes(
            gzip.compress(hourly.encode())
        )
    write_lines(
        folder / "yoochoose-clicks.dat",
        [
            f"{s},{day:%Y-%m-%dT%H:%M:%S}.000Z,{i},0"
            for (s, i, _), day in zip(clicks, days, strict=True)
        ],
    )
    views = [
        f"{s};NA;{i};5;{day:%Y-%m-%d}"
        for (s, i, _), day in zip(clicks, days, strict=True)
    ]
    write_lines(
        folder / "train-item-views.csv",
        ["sessionId;userId;itemId;timeframe;eventdate", *views],
    )
    events = [f"{t},{s},view,{i}," for s, i, t in clicks]
    write_lines(
        folder / "events.csv",
        ["timestamp,visitorid,event,itemid,transactionid", *events],
    )
    lines = [
        f'{{"session":{s},"events":[{{"aid":{i},"ts":{t},"type":"clicks"}}]}}'
        for s, i, t in clicks
    ]
    write_lines(folder / "otto-train.jsonl", lines)
    inter = [f"{s}\t{i}\t{t}" for s, i, t in clicks]
    write_lines(
        folder / "diginetica.inter",
        ["session_id:token\titem_id:token\ttimestamp:float", *inter],
    )
    for part in ("train", "valid", "test"):
        header = "session_id:token\titem_id_list:token_seq\titem_id:token"
        write_lines(
            folder / f"diginetica.{part}.inter",
            [header, "1\t5 6\t7", "2\t5\t6", "3\t7\t6"],
        )
    for part in ("train_full", "test", "train_tr", "train_valid"):
        seconds = [f"{s}\t{i}\t{t / 1000}" for s, i, t in clicks]
        write_lines(
            folder / f"yoochoose-clicks-100k_{part}.txt",
            ["SessionId\tItemId\tTime", *seconds],
        )
    (folder / "srgnn").mkdir()
    for part in ("train", "test"):
        write_lines(folder / f"{part}.txt", ["1 2 3", "2 3"])
        (folder / "srgnn" / f"{part}.txt").write_bytes(
            pickle.dumps(([[1, 2], [1], [5]], [3, 2, 6]))
        )
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_shows_runs(
    folder: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    lines = commands(page)
    assert lines
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        if "--out" in arguments:
            shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
        done = command(*arguments)
        assert done.code == 0, f"{line}\n{done.err}"


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"i0": "sku-1", "i1": "sku-7", "i2": "sku-9", "i3": "sku-4"}
    clicks = [(session, names[item], time) for session, item, time in small_shop(60)]
    columns = {
        name: [click[place] for click in clicks]
        for place, name in enumerate(("session_id", "sku", "time"))
    }
    pl.DataFrame(columns).write_parquet("clicks.parquet")
    (block,) = re.findall(
        r"^```python\n(.*?)^```",
        (ROOT / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    exec(compile(block, "README.md", "exec"), {})
    assert "Recommendations(" in capsys.readouterr().out
    assert (tmp_path / "runs" / "tonight" / "model.safetensors").exists()


def test_every_example_in_a_docstring_is_true() -> None:
    tried = 0
    for path in sorted((SOURCE / "posrec").rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            failed, examples = doctest.testmod(
                import_module(name.removesuffix(".__init__"))
            )
            assert failed == 0, name
            tried += examples
    assert tried > 3


# Files of a user, that posrec writes, or of the public code of SR-GNN, RecBole and session-rec.
OTHERS = {"main.py", "run_recbole.py", "session_based_rec_example.py", "run_config.py"}
EXAMPLES = {
    "my_model.py",
    "my_encoding.py",
    "recency.py",
    "FILE.py",
    "report.md",
    *OTHERS,
}
GENERATED = {
    f"reference/{name}.md" for name in ("commands", "python", "settings")
}  # by docs/site/reference.py
PAGES_AT_THE_ROOT = list(ROOT.glob("*.md"))
WRITTEN = [
    *PAGES_AT_THE_ROOT,
    *(ROOT / "docs").glob("*.md"),
    ROOT / "examples" / "README.md",
]
TEXTS = [*WRITTEN, *SOURCE.rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]


def missing_files(text: str, folder: Path) -> list[str]:
    """The .py and .md files that `text` names and the repository lacks."""
    roots = (ROOT, ROOT / "docs", SOURCE, SOURCE / "posrec", folder)
    named = (
        set(re.findall(r"(?<![\w/.*{}-])[\w./-]*\w\.(?:py|md)\b(?!\.)", text))
        - EXAMPLES
        - GENERATED
    )
    whole_paths = [
        name
        for name in named
        if "/" in name and not any((root / name).exists() for root in roots)
    ]
    return whole_paths + [
        name for name in named if "/" not in name and not known_by_name(name)
    ]


@functools.cache
def known_by_name(name: str) -> bool:
    folders = (SOURCE, ROOT / "docs", ROOT / "benchmarks", ROOT / "tests")
    return (ROOT / name).exists() or any(
        next(folder.rglob(name), None) for folder in folders
    )


def test_every_file_that_docs_and_docstrings_name_exists() -> None:
    missing = {
        str(path): missing_files(path.read_text(encoding="utf-8"), path.parent)
        for path in TEXTS
    }
    assert {path: names for path, names in missing.items() if names} == {}


def test_every_setting_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    page = import_module("reference").settings_page()
    rows = re.findall(r"^\| `(\w+)` \| `.*?` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 100
    assert [name for name, meaning in rows if not meaning] == []


def test_the_architecture_names_every_box_and_every_module_beside_them() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    beside = {
        path.stem
        for path in (SOURCE / "posrec").glob("*.py")
        if not path.stem.startswith("__")
    }
    boxes = {
        f"{path.parent.name}/" for path in (SOURCE / "posrec").glob("*/__init__.py")
    }
    assert {name for name in beside | boxes if f"`{name}`" not in text} == set()
