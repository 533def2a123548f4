"""Good lines of every text format, and a check that the command refuses a bad one."""

from pathlib import Path

from tests.helpers import command, small_shop

HEADER = "session_id,item_id,timestamp"
GOOD = [f"{session},{item},{time}" for session, item, time in small_shop()]
YOOCHOOSE = [f"{number // 3},2014-04-{1 + number // 30:02d}T10:00:00.000Z,{number % 5},0" for number in range(300)]
VIEWS = ["sessionId;userId;itemId;timeframe;eventdate", *(f"{n // 3};NA;{n % 5};{n};2016-05-09" for n in range(30))]
EVENTS = ["timestamp,visitorid,event,itemid,transactionid", *(f"{n},{n // 3},view,{n % 5}," for n in range(30))]
OTTO = [f'{{"session":{n},"events":[{{"aid":1,"ts":{n},"type":"clicks"}}]}}' for n in range(30)]


def refused(tmp_path: Path, *arguments: object, says: list[str], out: str = "out", lines: int = 2) -> str:
    """The command exits with 2, prints at most `lines` lines that contain all of `says`, and leaves no file behind."""
    before = sorted(tmp_path.rglob("*"))
    done = command("prepare", *arguments, "--out", tmp_path / out)
    message = done.err[done.err.index("error:") :]
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert message.count("\n") <= lines
    for words in says:
        assert words in message, message
    assert sorted(tmp_path.rglob("*")) == before
    return message


def changed(lines: list[str], number: int, line: str) -> list[str]:
    """`lines` with line `number` replaced, counted from 1 as an editor does."""
    return [*lines[: number - 1], line, *lines[number:]]
