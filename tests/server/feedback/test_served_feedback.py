"""Feedback from an answer over HTTP to a report, and visitors who are forgotten meanwhile."""

import asyncio
import json
import re
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posrec.server.feedback.answer_ids import KEY_FILE
from posrec.server.feedback.files import COLUMNS
from posrec.server.feedback.writing import FeedbackFiles
from posrec.server.routes import Routes
from posrec.server.schemas import FeedbackRequest
from posrec.server.service import Service
from posrec.server.settings import ServeOptions
from tests.helpers import command, listed
from tests.server.asgi import in_process
from tests.server.asking import Answer, Asker
from tests.server.feedback.written import parquet_rows, write_days
from tests.server.server_process import serving, until


def send(server: Asker, answer: str, event: str, items: list[str], **more: Any) -> None:
    body = {"answer": answer, "event": event, "items": items, **more}
    assert server.post("/v1/feedback", body).status == 202


def shown(server: Asker, answer: Answer, **more: Any) -> None:
    send(server, answer.json()["id"], "shown", answer.items, **more)


def first_clicked(server: Asker, answer: Answer, **more: Any) -> None:
    send(server, answer.json()["id"], "clicked", answer.items[:1], **more)


def report(folder: Path) -> Any:
    return json.loads(command("report", folder, "--json").out)


def test_from_an_answer_to_a_report(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    with serving(trained, "--feedback", folder) as server:
        answers = [server.recommend(f"i{n}", k=4) for n in range(5)]
        for visit, answer in enumerate(answers):
            shown(server, answer, session=f"v{visit}", visitor="anna")
            first_clicked(server, answer, session=f"v{visit}")
        answer_id = answers[0].json()["id"]
        best = answers[0].items[:1]
        send(server, answer_id, "carted", best, session="v0")
        send(server, answer_id, "bought", best, session="v0", value=12.5)
        send(server, answer_id, "favourite", best, session="v0")
        send(server, answer_id, "clicked", ["zz"])
        other_digit = "1" if answer_id[-1] == "0" else "0"
        send(server, answer_id[:-1] + other_digit, "shown", ["i1"])
        while_serving = report(folder)
        own = 'posrec_feedback_total{event="other"'
        assert server.metric(own) == 1  # clients choose the name
    (file,) = folder.glob("*.parquet")  # written when the server stopped
    assert listed(folder) == [KEY_FILE, file.name]
    rows = pl.read_parquet(file)
    assert rows.columns == list(COLUMNS)
    assert len(rows) == 5 * 5 + 3
    counted = report(folder)
    assert counted == while_serving
    ranks = [
        (rank["group"], rank["answers"], rank["clicks"], rank["purchases"])
        for rank in counted["by_rank"]
    ]
    assert ranks == [("1", 5, 5, 1), ("2", 5, 0, 0), ("3", 5, 0, 0), ("4", 5, 0, 0)]
    (run,) = counted["by_run"]
    assert run["group"] == trained.name
    assert run["fingerprints"] == [answers[0].json()["run"]]
    assert (run["visitors"], run["answers"], run["shown"]) == (1, 5, 20)
    assert (run["clicks"], run["carts"], run["purchases"]) == (5, 1, 1)
    assert (run["value"], run["own"]) == (12.5, {"favourite": 1})
    assert run["ratios"]["clicks"] == {"mean": 1.0, "interval": None}
    assert counted["total"]["clicks"] == 5
    assert counted["unmatched"] == 0
    table = command("report", folder)
    assert table.code == 0
    assert "12.50" in table.out
    assert re.search(r"^favourite +1$", table.out, re.MULTILINE)


@pytest.mark.parametrize(
    "change",
    [
        {"event": "Seen"},
        {"event": "seen\n"},
        {"event": ""},
        {"event": "s" * 33},
        {"items": []},
        {"answer": ""},
        {"rank": 1},
        {"value": 2},
        {"visitor": ""},
        {"event": "bought", "items": ["i1", "i2"], "value": 2},
        {"event": "bought", "value": 2e9},
    ],
)
def test_wrong_feedback_is_refused(
    trained: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    with in_process(trained, feedback=str(tmp_path)) as server:
        body = {"answer": "a", "event": "shown", "items": ["i1"]}
        assert server.post("/v1/feedback", {**body, **change}).status == 422
    assert listed(tmp_path) == [KEY_FILE]


def test_a_split_is_reported_by_the_names_of_the_runs(
    trained: Path, counted: Path, tmp_path: Path
) -> None:
    """Nine in ten visitors of the second run click, and one in ten of the first."""
    names = [trained.name, counted.name]
    with in_process(trained, counted, feedback=str(tmp_path)) as server:
        split = server.get("/v1/run").json()["split"]
        name_of = {run["fingerprint"]: run["name"] for run in split}
        answered = dict.fromkeys(names, 0)
        for number in range(80):
            visitor = f"visitor-{number}"
            answer = server.recommend("i1", k=2, split_by=visitor)
            name = name_of[answer.json()["run"]]
            answered[name] += 1
            shown(server, answer, visitor=visitor)
            if (number % 10 == 0) is (name == names[0]):
                first_clicked(server, answer, visitor=visitor)
        for name in names:
            shown_answers = f'posrec_feedback_total{{event="shown",run="{name}"}}'
            assert server.metric(shown_answers) == answered[name]
            answers = f'posrec_answers_total{{run="{name}"}}'
            assert server.metric(answers) == answered[name]
    better = f"{names[1]} is better than {names[0]}: "
    assert better in command("report", tmp_path).out
    assert command("report", tmp_path, "--by", "day").code == 0
    assert command("report", tmp_path, "--by", "week").code == 2


def test_many_rows_are_written_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def write(
        files: FeedbackFiles, answer: str, event: str, items: list[str], *more: object
    ) -> int:
        threads.append(threading.current_thread().name)
        return len(items)

    monkeypatch.setattr(FeedbackFiles, "write", write)
    handler = Routes(Service(ServeOptions(("run",), feedback=str(tmp_path)))).feedback
    for number in (20, 1000):
        items: list[str | int] = [f"i{n}" for n in range(number)]
        request = FeedbackRequest(answer="a", event="shown", items=items)
        assert asyncio.run(handler(data=request)).written == number
    assert [name.startswith("posrec-background") for name in threads] == [False, True]


def test_a_visitor_is_forgotten_while_the_server_writes(
    trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "feedback"
    store = f"sqlite:{tmp_path / 'sessions'}?timeout=60"

    def visit(server: Asker, visitor: str) -> None:
        answer = server.post(f"/v1/sessions/{visitor}/click", {"item": "i3", "k": 2})
        shown(server, answer)  # without the visitor's id
        first_clicked(server, answer, session=visitor)

    def forget_anna(server: Asker) -> None:
        options = ("--feedback", folder, "--session-store", store)
        done = command("forget", "--visitor", "anna", *options)
        assert done.code == 0
        sessions, rows, files = re.findall(r"\d+", done.out)
        assert (sessions, rows, files) == ("1", "3", "1"), done.out
        assert server.recommend(session_id="anna").json()["popular"]
        assert not server.recommend(session_id="bert").json()["popular"]

    feedback = str(folder)
    with in_process(trained, feedback=feedback, session_store=store) as first:
        visit(first, "anna")
        visit(first, "bert")
        forget_anna(first)  # a Parquet file is left
    options = ("--feedback", folder, "--session-store", store, "--log-requests")
    with serving(trained, *options) as server:
        visit(server, "anna")
        visit(server, "bert")
        forget_anna(server)
        shown(server, server.recommend("i3", k=1), session="carla")  # writes on
        assert "anna" not in str(server.log)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"anna" in path.read_bytes() for path in files)
    sessions = parquet_rows(folder)["session"].to_list()
    assert "anna" not in sessions
    assert sessions.count("bert") == 2
    assert len(sessions) == 2 * 3 + 1


def test_files_older_than_asked_for_are_deleted_by_the_server(
    trained: Path, tmp_path: Path
) -> None:
    old, new = write_days(tmp_path, "anna", "bert")
    now = f"feedback-{datetime.now(UTC):%Y%m%dT%H%M%S}-1-1.parquet"
    new.rename(tmp_path / now)
    not_of_a_server = "feedback-of-last-year.parquet"
    shutil.copy(old, tmp_path / not_of_a_server)
    with serving(trained, "--feedback", tmp_path, "--keep-feedback", "90d") as server:
        (line,) = until(lambda: server.logged("old feedback deleted"))
    assert line["files"] == 1
    assert listed(tmp_path) == sorted([KEY_FILE, now, not_of_a_server])


@pytest.mark.parametrize(
    "options",
    [("--keep-feedback", "90d"), ("--feedback", "f", "--keep-feedback", "long")],
    ids=["without --feedback", "not a duration"],
)
def test_a_wrong_time_to_keep_feedback(trained: Path, options: tuple[str, ...]) -> None:
    assert command("serve", trained, *options).code == 2
