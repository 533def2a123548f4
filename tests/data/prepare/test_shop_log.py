"""A shop's log as it is: an hour of searches alone, clicks without a session, events that were sent
twice, bots."""

import gzip
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import posrec
from posrec.progress import SilentProgress
from tests.helpers import RecordingProgress, command, in_parts, raw, write_lines

# 2026-09-01
START = 1_788_220_800_000
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
COLUMNS = {f"{role}_column": name for role, name in ROLES.items()}
OPTIONS = {
    "events": "view,cart",
    "min_support": 1,
    "drop_duplicates": True,
    "max_session_clicks": 100,
}
Event = dict[str, Any]


def shop() -> Iterator[Event]:
    """Forty visits of three clicks, two in five with a user alone; every fourth is sent twice. And
    bots."""
    for number in range(40):
        begin = START + number * HOUR // 8
        session = None if number % 5 < 2 else f"s{number}"
        searching = number // 8 == QUIET
        for step in range(3):
            kind = "search" if searching else ("view", "view", "cart")[step]
            item = None if kind == "search" else f"sku-{(number + step) % 6}"
            event = {
                "session": session,
                "user": f"u{number % 7}",
                "item": item,
                "time": begin + 60_000 * step,
            }
            yield {**event, "event": kind}
            if step == 1 and number % 4 == 0:
                yield {**event, "time": event["time"] + 300, "event": kind}
    for bot in BOTS:
        for step in range(150):
            at = START + 3 * HOUR + 500 * step
            yield {
                "session": None,
                "user": bot,
                "item": f"sku-{step % 6}",
                "time": at,
                "event": "view",
            }


def nested(event: Event) -> str:
    found: dict[str, Any] = {}
    for role, value in event.items():
        *outer, last = ROLES[role].split(".")
        if value is not None:
            (found.setdefault(outer[0], {}) if outer else found)[last] = value
    return json.dumps(found)


def write(kind: str, folder: Path, by_hour: bool = True) -> Any:
    events = sorted(shop(), key=lambda event: event["time"])
    log = folder / "log"
    if kind == "table":
        return pl.DataFrame(events).rename(ROLES)
    log.mkdir()
    hours = (
        sorted({(event["time"] - START) // HOUR for event in events})
        if by_hour
        else [None]
    )
    for hour in hours:
        part = [
            event for event in events if hour in (None, (event["time"] - START) // HOUR)
        ]
        frame = pl.DataFrame(
            part, schema=dict.fromkeys(ROLES, pl.String), strict=False
        ).rename(ROLES)
        if kind == "jsonl":
            lines = "".join(nested(event) + "\n" for event in part)
            (log / f"{hour}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        elif kind == "csv":
            frame.write_csv(log / f"{hour}.csv")
        else:
            frame.write_parquet(log / f"{hour}.parquet")
    return f"{log}/*"


def prepared(source: Any, out: Path, **options: Any) -> posrec.PreparedDataset:
    return posrec.prepare(
        source,
        out=out,
        **{"progress": SilentProgress(), **COLUMNS, **OPTIONS, **options},
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> posrec.PreparedDataset:
    """The same shop without what is wrong: each visit is a session, and no event is sent twice."""
    folder = tmp_path_factory.mktemp("expected")
    lines = ["session,item,time"]
    for event in shop():
        if (
            event["item"] is not None
            and event["user"] not in BOTS
            and event["time"] % 1000 == 0
        ):
            visit = (event["time"] - START) // (HOUR // 8)
            lines.append(f"{visit},{event['item']},{event['time']}")
    return posrec.prepare(
        write_lines(folder / "c.csv", lines), out=folder / "out", min_support=1
    )


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "table"])
def test_every_format(
    tmp_path: Path, expected: posrec.PreparedDataset, kind: str, in_memory: bool
) -> None:
    with nullcontext() if in_memory else in_parts(50):
        data = prepared(write(kind, tmp_path), tmp_path / "out")
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
    columns = [
        word
        for option, name in COLUMNS.items()
        for word in (f"--{option.replace('_', '-')}", name)
    ]
    words = [
        "prepare",
        log,
        *columns,
        "--events",
        "view,cart",
        "--min-support",
        "1",
        "--out",
        out,
    ]
    done = command(*words)
    assert done.code == 0, done.err
    (warning,) = json.loads(command("stats", out, "--json").out)["warnings"]
    assert warning.startswith(
        "warning: 3 sessions with 450 clicks may be those of bots"
    )
    assert (
        "crawler-0 (150 clicks), crawler-1 (150 clicks), crawler-2 (150 clicks)"
        in warning
    )
    assert warning in done.err
    assert "after 30m of inactivity" in done.err
    assert warning in command("stats", out).err
    done = command(
        *words, "--overwrite", "--drop-duplicates", "--max-session-clicks", "100"
    )
    assert "warning" not in done.err
    assert posrec.load(out).fingerprint == expected.fingerprint


def test_a_long_visit_is_that_of_a_bot_and_a_slow_one_is_not(tmp_path: Path) -> None:
    """1,001 clicks, a minute apart; and 1,000, which begin with 120 in two minutes and one second."""
    slow = [("slow", f"i{step % 9}", START + 60_000 * step) for step in range(1001)]
    quick = [("quick", f"i{step % 9}", START + 1009 * step) for step in range(1000)]
    at_once = [("import", f"i{step % 9}", START) for step in range(1000)]
    table = pl.DataFrame(
        [*slow, *quick, *at_once], schema=["session", "item", "time"], orient="row"
    )
    (warning,) = posrec.prepare(table, out=tmp_path / "a", no_test=True).manifest[
        "warnings"
    ]
    assert "1 session with 1,001 clicks may be those of bots" in warning
    assert "The busiest: slow (1,001 clicks)." in warning


def test_an_hour_without_a_column_is_read_wherever_it_stands(tmp_path: Path) -> None:
    """More searches than are looked at first, before the first event with an item."""
    searches = [
        json.dumps({"event": "search", "who": "u", "ts": START}) for _ in range(1500)
    ]
    clicks = [
        json.dumps(
            {
                "event": "view",
                "who": f"u{n // 3}",
                "visit": n // 3,
                "ts": START + n,
                "product": {"sku": n % 4},
            }
        )
        for n in range(60)
    ]
    a = write_lines(tmp_path / "a.jsonl", searches)
    b = write_lines(tmp_path / "b.jsonl", clicks)
    one = write_lines(tmp_path / "one.jsonl", [*searches, *clicks])
    options = {
        "item_column": "product.sku",
        "session_column": "visit",
        "events": "view",
        "no_test": True,
    }
    found = set()
    heard = RecordingProgress()
    for number, source in enumerate(([a, b], [b, a], one)):
        data = posrec.prepare(
            source, out=tmp_path / f"{number}", progress=heard, **options
        )
        found.add(data.fingerprint)
        assert len(raw(data.train, data.vocabulary)) == 20
    assert len(found) == 1
    with pytest.raises(
        posrec.InputError, match=r"a\.jsonl \(and 1 more\) has no column 'sku'"
    ):
        posrec.prepare(
            [a, b],
            out=tmp_path / "no",
            progress=heard,
            **{**options, "item_column": "sku"},
        )
    assert not (tmp_path / "no").exists()


def test_a_guess_is_reported_once_and_again_where_it_changes(tmp_path: Path) -> None:
    names = ("session", "session", "visit", "visit")
    files = [
        write_lines(
            tmp_path / f"{hour}.csv",
            [
                f"{name},item,time",
                *(f"{hour}{n},{n % 3},{START + n}" for n in range(3)),
            ],
        )
        for hour, name in enumerate(names)
    ]
    progress = RecordingProgress()
    with pytest.raises(posrec.InputError):
        posrec.prepare(files, out=tmp_path / "out", progress=progress)
    assert [text for text in progress.messages if "read as the" in text] == [
        "0.csv: column 'session' read as the session",
        "0.csv: column 'item' read as the item",
        "0.csv: column 'time' read as the time",
        "2.csv: column 'visit' read as the session",
    ]


def test_clicks_without_a_session_are_broken_and_the_user_is_asked_for(
    tmp_path: Path,
) -> None:
    options = {**COLUMNS, **OPTIONS, "user_column": None}
    with pytest.raises(
        posrec.InputError, match=r"10 lines are broken; .* --user-column"
    ):
        posrec.prepare(write("jsonl", tmp_path), out=tmp_path / "out", **options)
    lines = ["session,user,item,time", "a,u,x,1", ",u,y,2", ",,z,3"]
    with pytest.raises(
        posrec.InputError, match=r"line 4: the user \(column 'user'\) is missing"
    ):
        posrec.prepare(
            write_lines(tmp_path / "c.csv", lines),
            out=tmp_path / "out",
            session_column="session",
            user_column="user",
        )


def test_nested_columns_are_guessed_too(tmp_path: Path) -> None:
    progress = RecordingProgress()
    options = {"session_column": "session.id", "user_column": "user.id", **OPTIONS}
    posrec.prepare(
        write("jsonl", tmp_path), out=tmp_path / "out", progress=progress, **options
    )
    assert [text for text in progress.messages if "read as the" in text] == [
        f"0.jsonl.gz: column '{name}' read as the {role}"
        for role, name in (
            ("item", "product.sku"),
            ("time", "ts"),
            ("event", "event.type"),
        )
    ]


def test_a_user_may_be_a_part_of_the_session(tmp_path: Path) -> None:
    """As in exports of Google Analytics, where sessions are numbered per user and some have no
    number."""
    lines = [
        "user,number,item,time",
        "u,1,a,1",
        "u,,b,2",
        "v,1,c,3",
        "u,1,d,4",
        "u,,e,5",
        "v,1,f,6",
    ]
    names = {
        "session_column": ["user", "number"],
        "user_column": "user",
        "time_unit": "s",
    }
    log = write_lines(tmp_path / "c.csv", lines)
    data = posrec.prepare(
        log, out=tmp_path / "out", min_support=1, no_test=True, **names
    )
    assert raw(data.train, data.vocabulary) == [["a", "d"], ["b", "e"], ["c", "f"]]
    with pytest.raises(posrec.InputError, match="both the session and the user"):
        posrec.prepare(log, out=tmp_path / "no", **{**names, "session_column": "user"})
