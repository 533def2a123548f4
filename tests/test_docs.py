"""The commands of the pages run on small files of the names that they use; docstrings are true;
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
from typing import Any

import polars as pl
import pytest

from tests.helpers import ROOT, SOURCE, command, small_shop, write_lines

PACKAGE = SOURCE / "posrec"
PAGES = ("preparing.md", "large_logs.md", "datasets.md", "migrating.md")

# The logs of one click a line: the line of a click, after the header if there is one.
START = 1_788_000_000_000  # 2026-08-29
SESSION_REC = ["SessionId\tItemId\tTime", "{session}\t{item}\t{seconds}"]
LOGS = {
    "clicks.csv": ["session_id,item_id,timestamp", "{session},{item},{time}"],
    "users.csv": ["customer,item_id,timestamp", "{session},{item},{time}"],
    "users-of-today.csv": ["customer,item_id,timestamp", "{session},{item},{time}"],
    "visits.txt": ["visit;sku;at", "{session};{item};{time}"],
    "actions.csv": ["session,item,time,action", "{session},{item},{time},{event}"],
    "ga4.jsonl": [
        '{{"user_pseudo_id": "{session}.5", "ga_session_id": {session}, '
        '"item_id": "{item}", "event_timestamp": {time}, "event_name": "view_item"}}'
    ],
    "yoochoose-clicks.dat": ["{session},{day:%Y-%m-%dT%H:%M:%S}.000Z,{item},0"],
    "train-item-views.csv": [
        "sessionId;userId;itemId;timeframe;eventdate",
        "{session};NA;{item};5;{day:%Y-%m-%d}",
    ],
    "events.csv": [
        "timestamp,visitorid,event,itemid,transactionid",
        "{time},{session},view,{item},",
    ],
    "otto-train.jsonl": [
        '{{"session": {session}, '
        '"events": [{{"aid": {item}, "ts": {time}, "type": "clicks"}}]}}'
    ],
    "diginetica.inter": [
        "session_id:token\titem_id:token\ttimestamp:float",
        "{session}\t{item}\t{time}",
    ],
    "yoochoose-clicks-100k_train_full.txt": SESSION_REC,
    "yoochoose-clicks-100k_train_tr.txt": SESSION_REC,
    "yoochoose-clicks-100k_train_valid.txt": SESSION_REC,
}


def shop_clicks() -> list[dict[str, Any]]:
    return [
        {
            "session": session[1:],
            "item": item[1:],
            "time": time,
            "seconds": time / 1000,
            "day": datetime.fromtimestamp(time / 1000, UTC),
            "event": ("view", "cart", "purchase")[number % 3],
        }
        for number, (session, item, time) in enumerate(small_shop(300, START))
    ]


def write_hours(folder: Path, clicks: list[dict[str, Any]]) -> None:
    """A file of nested JSON for each hour. The first has no click, and two of five sessions have
    no id."""
    folder.mkdir()
    search = {"event": {"type": "search"}, "user": {"id": 1}, "ts": 1_700_000_000_000}
    for hour in range(24):
        events = [search]
        if hour > 0:
            events = [nested_event(click) for click in clicks[hour::24]]
        text = "".join(json.dumps(event) + "\n" for event in events)
        packed = gzip.compress(text.encode())
        (folder / f"{hour:02}.jsonl.gz").write_bytes(packed)


def nested_event(click: dict[str, Any]) -> dict[str, Any]:
    session = click["session"]
    return {
        "session": {"id": session if int(session) % 5 > 1 else None},
        "user": {"id": session},
        "product": {"sku": click["item"]},
        "ts": click["time"],
        "event": {"type": "view"},
    }


def write_splits(folder: Path) -> None:
    """Logs whose training and test parts are files of their own."""
    (folder / "srgnn").mkdir()
    for split in ("train", "test"):
        write_lines(folder / f"{split}.txt", ["1 2 3", "2 3"])
        prefixes_and_targets = ([[1, 2], [1], [5]], [3, 2, 6])
        pickled = pickle.dumps(prefixes_and_targets)
        (folder / "srgnn" / f"{split}.txt").write_bytes(pickled)
    header = "session_id:token\titem_id_list:token_seq\titem_id:token"
    for split in ("train", "valid", "test"):
        lines = [header, "1\t5 6\t7", "2\t5\t6", "3\t7\t6"]
        write_lines(folder / f"diginetica.{split}.inter", lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that a command of a page reads."""
    folder = tmp_path_factory.mktemp("docs")
    clicks = shop_clicks()
    for name, (*header, line) in LOGS.items():
        lines = [line.format(**click) for click in clicks]
        write_lines(folder / name, [*header, *lines])
    write_lines(
        folder / "items.csv",
        ["id,artikel,title,listed_at,sold_at", "1,1,Tent,2026-11-01,"],
    )
    parquet = pl.DataFrame(clicks).select("time", visit="session", sku="item")
    parquet.write_parquet(folder / "clicks.parquet")
    week = pl.DataFrame(clicks).select(
        "seconds", visit="session", article="item", kind="event"
    )
    week.rename({"seconds": "at"}).write_parquet(folder / "week2.parquet")
    mapping = re.search(r"```toml\n(.*?)```", page_text("preparing.md"), re.DOTALL)
    assert mapping is not None
    (folder / "mapping.toml").write_text(mapping[1])
    (folder / "days").mkdir()
    for day in (1, 2):
        packed = gzip.compress((folder / "clicks.csv").read_bytes())
        (folder / "days" / f"{day}.csv.gz").write_bytes(packed)
    write_hours(folder / "hours", clicks)
    write_splits(folder)
    return folder


def page_text(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def shown_commands(page: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", page_text(page), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("posrec ")]


@pytest.mark.usefixtures("no_export")
@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_shows_runs(
    folder: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    lines = shown_commands(page)
    assert lines
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        if "--out" in arguments:
            shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
        done = command(*arguments)
        assert done.code == 0, f"{line}\n{done.err}"


@pytest.mark.usefixtures("no_export")
def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"i0": "sku-1", "i1": "sku-7", "i2": "sku-9", "i3": "sku-4"}
    clicks = [(session, names[item], time) for session, item, time in small_shop(60)]
    columns = ["session_id", "sku", "time"]
    pl.DataFrame(clicks, columns, orient="row").write_parquet("clicks.parquet")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "Recommendations(" in capsys.readouterr().out
    assert (tmp_path / "runs" / "tonight" / "model.safetensors").exists()


def test_every_example_in_a_docstring_is_true() -> None:
    tried = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            module = import_module(name.removesuffix(".__init__"))
            failed, examples = doctest.testmod(module)
            assert failed == 0, name
            tried += examples
    assert tried > 3


# Files of a user, of the public code of SR-GNN, RecBole and session-rec, and what posrec or
# docs/site/reference.py writes. Links to other sites name files of those sites.
NOT_HERE = {
    *("my_model.py", "my_encoding.py", "recency.py", "FILE.py", "report.md"),
    *(
        "main.py",
        "model.py",
        "run_recbole.py",
        "session_based_rec_example.py",
        "run_config.py",
    ),
    *("reference/commands.md", "reference/python.md", "reference/settings.md"),
}
ELSEWHERE = re.compile(r"\[[^]]*\]\[[^]]*\]|https?://\S+")
FILE_NAME = re.compile(r"(?<![\w/.*{}-])[\w./-]*\w\.(?:py|md)\b(?!\.)")
TEXTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    ROOT / "examples" / "README.md",
    *SOURCE.rglob("*.py"),
    *(ROOT / "benchmarks").rglob("*.py"),
]


def missing_files(path: Path) -> list[str]:
    """The .py and .md files that a text names and the repository lacks."""
    text = ELSEWHERE.sub("", path.read_text(encoding="utf-8"))
    names = set(FILE_NAME.findall(text)) - NOT_HERE
    roots = (ROOT, ROOT / "docs", SOURCE, PACKAGE, path.parent)
    missing = []
    for name in names:
        in_a_root = any((root / name).exists() for root in roots)
        if not in_a_root and ("/" in name or not is_somewhere(name)):
            missing.append(name)
    return missing


@functools.cache
def is_somewhere(name: str) -> bool:
    folders = (SOURCE, ROOT / "docs", ROOT / "benchmarks", ROOT / "tests")
    files = (next(folder.rglob(name), None) for folder in folders)
    return (ROOT / name).exists() or any(files)


def test_every_file_that_docs_and_docstrings_name_exists() -> None:
    missing = {str(path): missing_files(path) for path in TEXTS}
    assert {path: names for path, names in missing.items() if names} == {}


def test_every_setting_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    page = import_module("reference").settings_page()
    rows = re.findall(r"^\| `(\w+)` \| `.*?` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 100
    assert [name for name, meaning in rows if not meaning] == []


def test_the_architecture_names_every_room_and_every_module_beside_them() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("[a-z]*.py")}
    assert {name for name in rooms | modules if f"`{name}`" not in text} == set()
