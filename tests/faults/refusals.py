"""Good lines of every text format, and a check that the command refuses a bad one."""

import shlex
from pathlib import Path

from tests.helpers import command, small_shop

HEADER = "session_id,item_id,timestamp"
GOOD = [f"{session},{item},{time}" for session, item, time in small_shop()]
JSONL = [
    f'{{"session_id": "{session}", "item_id": "{item}", "timestamp": {time}}}'
    for session, item, time in small_shop()
]
YOOCHOOSE = [
    f"{n // 3},2014-04-{1 + n // 30:02d}T10:00:00.000Z,{n % 5},0" for n in range(300)
]
VIEWS = [
    "sessionId;userId;itemId;timeframe;eventdate",
    *(f"{n // 3};NA;{n % 5};{n};2016-05-{1 + n // 30:02d}" for n in range(300)),
]
EVENTS = [
    "timestamp,visitorid,event,itemid,transactionid",
    *(f"{n},{n // 3},view,{n % 5}," for n in range(150)),
]
CLICK = '{{"aid":{},"ts":{},"type":"clicks"}}'
OTTO = [
    f'{{"session":{n},"events":[{CLICK.format(1, n)},{CLICK.format(2, n + 1)}]}}'
    for n in range(60)
]
SESSIONS = ["1 2 3", "2 3", "3 1 2"] * 20


def refused(
    log: Path, options: str, *keywords: str, out: str = "out", lines: int = 2
) -> str:
    """`posrec prepare LOG OPTIONS` exits with 2, prints at most `lines` lines that contain all
    keywords, and leaves no file behind."""
    before = sorted(log.parent.rglob("*"))
    done = command("prepare", log, *shlex.split(options), "--out", log.parent / out)
    message = done.err[done.err.index("error:") :]
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert message.count("\n") <= lines
    for keyword in keywords:
        assert keyword in message, message
    assert sorted(log.parent.rglob("*")) == before
    return message


def changed(lines: list[str], number: int, line: str) -> list[str]:
    """`lines` with line `number` replaced, counted from 1 as an editor does."""
    return [*lines[: number - 1], line, *lines[number:]]
