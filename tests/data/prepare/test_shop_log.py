"""A shop's log as it is: an hour of searches alone, clicks without a session, duplicates, bots."""

import gzip
import json
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import posrec
from tests.helpers import RecordingProgress, command, frame, in_parts, raw, write_lines

START = 1_788_220_800_000  # 2026-09-01
HOUR = 3_600_000
QUIET = 2  # the hour of searches alone
BOTS = ("crawler-0", "crawler-1", "crawler-2")
ROLES = {
    "session": "session.id",
    "user": "user.id",
    "item": "product.sku",
    "time": "ts",
    "event": "event.type",
}
COLUMNS: dict[str, Any] = {f"{role}_column": name for role, name in ROLES.items()}
OPTIONS: dict[str, Any] = {
    "events": "view,cart",
    "min_support": 1,
    "drop_duplicates": True,
    "max_session_clicks": 100,
}
Event = dict[str, Any]


def shop() -> Iterator[Event]:
    """Forty visits of three clicks, two in five with a user alone, some clicks sent twice; bots."""
    for number in range(40):
        begin = START + number * HOUR // 8
        session = None if number % 5 < 2 else f"s{number}"
        user = f"u{number % 7}"
        searching = number // 8 == QUIET
        for step in range(3):
            kind = "search" if searching else ("view", "view", "cart")[step]
            item = None if searching else f"sku-{(number + step) % 6}"
            time = begin + 60_000 * step
            yield dict(zip(ROLES, (session, user, item, time, kind), strict=True))
            if step == 1 and number % 4 == 0:
                again = (session, user, item, time + 300, kind)
                yield dict(zip(ROLES, again, strict=True))
    for bot in BOTS:
        for step in range(150):
            time = START + 3 * HOUR + 500 * step
            click = (None, bot, f"sku-{step % 6}", time, "view")
            yield dict(zip(ROLES, click, strict=True))


def nested(event: Event) -> str:
    line: dict[str, Any] = {}
    for role, value in event.items():
        outer, _, inner = ROLES[role].rpartition(".")
        if value is not None and outer:
            line.setdefault(outer, {})[inner] = value
        elif value is not None:
            line[inner] = value
    return json.dumps(line)


def write(kind: str, folder: Path) -> Any:
    """The log as a table, or in a file an hour; what `posrec.prepare` takes."""
    events = sorted(shop(), key=lambda event: event["time"])
    log = folder / "log"
    if kind == "table":
        return pl.DataFrame(events).rename(ROLES)
    log.mkdir()
    for hour, events_of_hour in groupby(
        events, lambda event: (event["time"] - START) // HOUR
    ):
        rows = list(events_of_hour)
        texts = dict.fromkeys(ROLES, pl.String)
        table = pl.DataFrame(rows, schema=texts, strict=False).rename(ROLES)
        if kind == "jsonl":
            lines = "".join(nested(event) + "\n" for event in rows)
            (log / f"{hour}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        elif kind == "csv":
            table.write_csv(log / f"{hour}.csv")
        else:
            table.write_parquet(log / f"{hour}.parquet")
    return f"{log}/*"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> posrec.PreparedDataset:
    """The same shop without what is wrong: each visit is a session, and no event is sent twice."""
    folder = tmp_path_factory.mktemp("expected")
    lines = ["session,item,time"]
    for event in shop():
        sent_twice = event["time"] % 1000 != 0
        if event["item"] is None or event["user"] in BOTS or sent_twice:
            continue
        visit = (event["time"] - START) // (HOUR // 8)
        lines.append(f"{visit},{event['item']},{event['time']}")
    log = write_lines(folder / "c.csv", lines)
    return posrec.prepare(log, out=folder / "out", min_support=1)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "table"])
def test_every_format(
    tmp_path: Path, expected: posrec.PreparedDataset, kind: str, in_memory: bool
) -> None:
    with nullcontext() if in_memory else in_parts(50):
        source = write(kind, tmp_path)
        data = posrec.prepare(source, out=tmp_path / "out", **COLUMNS, **OPTIONS)
    assert data.fingerprint == expected.fingerprint
    assert data.manifest["options"]["gap"] == 1_800_000
    removed = {
        step["step"]: (step["removed_clicks"], step["removed_sessions"])
        for step in data.manifest["steps"]
    }
    assert removed["events that were sent twice"] == (8, 0)
    assert removed["sessions over 100 clicks"] == (450, 3)
    assert data.manifest["warnings"] == []


def test_the_command_warns_of_bots_and_stats_repeats_it(
    tmp_path: Path, expected: posrec.PreparedDataset
) -> None:
    log = write("jsonl", tmp_path)
    out = tmp_path / "out"
    words = ["prepare", log, "--out", out, "--events", "view,cart", "--min-support=1"]
    words += [f"--{role}-column={name}" for role, name in ROLES.items()]
    done = command(*words)
    assert done.code == 0, done.err
    (warning,) = json.loads(command("stats", out, "--json").out)["warnings"]
    assert "3 sessions with 450 clicks may be those of bots" in warning
    assert ", ".join(f"{bot} (150 clicks)" for bot in BOTS) in warning
    assert warning in done.err
    assert "after 30m of inactivity" in done.err
    assert warning in command("stats", out).err
    words += ["--overwrite", "--drop-duplicates", "--max-session-clicks=100"]
    done = command(*words)
    assert "warning" not in done.err
    assert posrec.load(out).fingerprint == expected.fingerprint


def test_a_long_visit_is_that_of_a_bot_and_a_slow_one_is_not(tmp_path: Path) -> None:
    """1,001 clicks, a minute apart; and 1,000, of which 120 take two minutes and one second."""
    slow = [("slow", f"i{step % 9}", START + 60_000 * step) for step in range(1001)]
    quick = [("quick", f"i{step % 9}", START + 1009 * step) for step in range(1000)]
    at_once = [("import", f"i{step % 9}", START) for step in range(1000)]
    table = frame([*slow, *quick, *at_once])
    data = posrec.prepare(table, out=tmp_path / "a", no_test=True)
    (warning,) = data.manifest["warnings"]
    assert "1 session with 1,001 clicks may be those of bots" in warning
    assert "slow (1,001 clicks)" in warning


def test_an_hour_without_a_column_is_read_wherever_it_stands(tmp_path: Path) -> None:
    """More searches than are looked at first, before the first event with an item."""
    searches = [json.dumps({"event": "search", "who": "u", "ts": START})] * 1500
    clicks = []
    for number in range(60):
        visit = number // 3
        click = {
            "event": "view",
            "who": f"u{visit}",
            "visit": visit,
            "ts": START + number,
        }
        clicks.append(json.dumps({**click, "product": {"sku": number % 4}}))
    a = write_lines(tmp_path / "a.jsonl", searches)
    b = write_lines(tmp_path / "b.jsonl", clicks)
    both = write_lines(tmp_path / "both.jsonl", [*searches, *clicks])
    options: Any = {"session_column": "visit", "events": "view", "no_test": True}
    fingerprints = set()
    for number, source in enumerate(([a, b], [b, a], both)):
        out = tmp_path / f"{number}"
        data = posrec.prepare(source, out=out, item_column="product.sku", **options)
        fingerprints.add(data.fingerprint)
        assert data.train.sessions == 20
    assert len(fingerprints) == 1
    with pytest.raises(posrec.InputError, match=r"\(and 1 more\) has no column 'sku'"):
        posrec.prepare([a, b], out=tmp_path / "no", item_column="sku", **options)
    assert not (tmp_path / "no").exists()


def test_a_guess_is_reported_once_and_again_where_it_changes(tmp_path: Path) -> None:
    files = []
    for hour, name in enumerate(("session", "session", "visit", "visit")):
        rows = [f"{hour}{n},{n % 3},{START + n}" for n in range(3)]
        log = tmp_path / f"{hour}.csv"
        files.append(write_lines(log, [f"{name},item,time", *rows]))
    progress = RecordingProgress()
    with pytest.raises(posrec.InputError):
        posrec.prepare(files, out=tmp_path / "out", progress=progress)
    assert [text for text in progress.messages if "read as the" in text] == [
        "0.csv: column 'session' read as the session",
        "0.csv: column 'item' read as the item",
        "0.csv: column 'time' read as the time",
        "2.csv: column 'visit' read as the session",
    ]


def test_clicks_without_a_session_need_the_user(tmp_path: Path) -> None:
    options = {**COLUMNS, **OPTIONS, "user_column": None}
    log = write("jsonl", tmp_path)
    with pytest.raises(posrec.InputError, match=r"10 lines .* --user-column"):
        posrec.prepare(log, out=tmp_path / "out", **options)
    lines = ["session,user,item,time", "a,u,x,1", ",u,y,2", ",,z,3"]
    log = write_lines(tmp_path / "c.csv", lines)
    with pytest.raises(posrec.InputError, match=r"line 4: no user and no session"):
        posrec.prepare(
            log, out=tmp_path / "out", session_column="session", user_column="user"
        )


def test_nested_columns_are_guessed_too(tmp_path: Path) -> None:
    progress = RecordingProgress()
    options = {"session_column": "session.id", "user_column": "user.id", **OPTIONS}
    log = write("jsonl", tmp_path)
    posrec.prepare(log, out=tmp_path / "out", progress=progress, **options)
    assert [text for text in progress.messages if "read as the" in text] == [
        f"0.jsonl.gz: column '{ROLES[role]}' read as the {role}"
        for role in ("item", "time", "event")
    ]


def test_a_user_may_be_a_part_of_the_session(tmp_path: Path) -> None:
    """As in Google Analytics, where sessions are numbered per user and some have no number."""
    clicks = ["u,1,a,1", "u,,b,2", "v,1,c,3", "u,1,d,4", "u,,e,5", "v,1,f,6"]
    log = write_lines(tmp_path / "c.csv", ["user,number,item,time", *clicks])
    options: dict[str, Any] = {"user_column": "user", "min_support": 1, "no_test": True}
    data = posrec.prepare(
        log, out=tmp_path / "out", session_column=["user", "number"], **options
    )
    assert raw(data.train, data.vocabulary) == [["a", "d"], ["b", "e"], ["c", "f"]]
    with pytest.raises(posrec.InputError, match="both the session and the user"):
        posrec.prepare(log, out=tmp_path / "no", session_column="user", **options)
