"""What a shop asks for beside a session, over a real socket: the same as in Python."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from posrec.server.live.rule_files import stamp_of
from tests.helpers import command
from tests.server.server_process import Server, serving, until

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained run, with a brand and a price for every item."""
    rec = Recommender.load(trained, "cpu")
    rec.vocabulary.columns.update(brand=[f"b{n % 3}" for n in range(30)], price=[n + 0.5 for n in range(30)])
    folder = tmp_path_factory.mktemp("answers") / "run"
    rec.save(folder, export=False)
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run) as server:
        yield server


@pytest.fixture(scope="module")
def recommender(run: Path) -> Recommender:
    return Recommender(load_run(run), "cpu")


def items(answer: Any) -> list[str]:
    return [one["item"] for one in answer["items"]]


@pytest.mark.parametrize("session", [["i3", "i4"], [], ["zz"]])
@pytest.mark.parametrize(
    "more",
    [
        {"filter": {"brand": ["b0", "b1"], "price": {"max": 20}}},
        {"filter": {"brand": "b2"}, "fields": ["price", "brand"], "k": 3},
        {"pin": ["i9", "zz", "i20"], "deny": ["i20"]},
        {"boost": {"brand": {"b1": 4.0}}},
        {"diversify": 0.6},
        {"diversify": "brand", "k": 3},
        {"k": 1000},
        {"allow": ["zz"]},
    ],
    ids=lambda more: ", ".join(more) if isinstance(more, dict) else None,
)
def test_the_same_answer_as_in_python(
    server: Server, recommender: Recommender, session: list[str], more: dict[str, Any]
) -> None:
    answer = server.recommend(*session, **more)
    assert answer.status == 200, answer.body
    expected = recommender.recommend(session, **more)
    given = answer.json()
    assert items(given) == [one.item for one in expected]
    assert [one["score"] for one in given["items"]] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert [one.get("fields") for one in given["items"]] == [one.fields for one in expected]
    assert [one.get("pinned", False) for one in given["items"]] == [one.pinned for one in expected]
    assert (given["popular"], given["unknown"]) == (expected.popular, list(expected.unknown))


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        ({"filter": {"colour": "red"}}, 400, "no column 'colour'; they have brand, price"),
        ({"filter": {"brand": {"max": 1}}}, 400, "column 'brand' does not hold numbers"),
        ({"filter": ["brand"]}, 422, "Expected `object"),
        ({"fields": ["colour"]}, 400, "no column 'colour'"),
        ({"boost": {"brand": {"b1": -1}}}, 400, "must be between 0.001 and 1000"),
        ({"diversify": 2}, 422, "diversify"),
        ({"pin": "i3"}, 422, "pin"),
    ],
)
def test_wrong_requests_have_a_plain_message(server: Server, more: dict[str, Any], status: int, message: str) -> None:
    answer = server.recommend("i3", **more)
    assert (answer.status, message in answer.json()["error"]) == (status, True), answer.body


def test_a_batch_has_the_answers_of_its_sessions(server: Server) -> None:
    sessions = [["i3", "i4"], [], ["i5"], ["zz"], *([f"i{n % 30}"] for n in range(40))]
    rules = {"filter": {"price": {"max": 25}}, "k": 4}
    answer = server.ask("POST", "/v1/recommend/batch", {"sessions": sessions, **rules})
    assert answer.status == 200, answer.body
    answers = answer.json()["answers"]
    assert len(answers) == len(sessions)
    for session, one in zip(sessions[:8], answers[:8], strict=True):
        alone = server.recommend(*session, **rules).json()
        assert (items(one), one["popular"], one["unknown"]) == (items(alone), alone["popular"], alone["unknown"])
    assert len({one["id"] for one in answers}) == len(sessions)
    assert server.ask("POST", "/v1/recommend/batch", {"sessions": []}).json() == {"answers": []}
    assert server.ask("POST", "/v1/recommend/batch", {"sessions": [["i3"]] * 1001}).status == 422
    assert server.ask("POST", "/v1/recommend/batch", {"sessions": [["i3"]], "filter": {"x": 1}}).status == 400


def test_similar_items(server: Server, recommender: Recommender) -> None:
    plain = server.ask("GET", "/v1/similar/i3?k=5").json()
    assert items(plain) == [one.item for one in recommender.similar_items("i3", 5)]
    wanted = {"brand": ["b1"], "price": {"min": 4}}
    filtered = server.ask("GET", f"/v1/similar/i3?fields=brand&filter={quote(json.dumps(wanted))}").json()
    expected = recommender.similar_items("i3", filter=wanted, fields=["brand"])
    assert items(filtered) == [one.item for one in expected]
    assert {one["fields"]["brand"] for one in filtered["items"]} == {"b1"}
    assert server.ask("GET", "/v1/similar/zz").status == 404
    assert server.ask("GET", "/v1/similar/i3?k=0").status == 422
    wrong = server.ask("GET", "/v1/similar/i3?filter=brand")
    assert (wrong.status, "filter is not a JSON object" in wrong.json()["error"]) == (400, True)


def test_answers_name_the_run(server: Server) -> None:
    about = server.ask("GET", "/v1/run").json()
    answers = [server.recommend("i3").json() for _ in range(2)]
    assert {one["run"] for one in answers} == {about["fingerprint"]}
    assert answers[0]["id"] != answers[1]["id"]
    assert answers[0]["id"].startswith(about["fingerprint"])
    assert (about["columns"], about["split"]) == (
        ["brand", "price"],
        [{"fingerprint": about["fingerprint"], "share": 1}],
    )


def test_rule_files_are_read_again_when_they_change(run: Path, tmp_path: Path) -> None:
    deny, allow = tmp_path / "deny.txt", tmp_path / "allow.txt"
    deny.write_text("i5\n\nnonsense\n")
    allow.write_text("".join(f"i{n}\n" for n in range(20)))
    with serving(run, "--deny-file", deny, "--allow-file", allow) as server:
        allowed = {f"i{n}" for n in range(20)}
        assert {*items(server.recommend("i3", k=100).json())} == allowed - {"i5"}
        assert {*items(server.recommend(k=100, pin=["i5", "i25"]).json())} == allowed - {"i5"}
        assert "i5" not in items(server.ask("GET", "/v1/similar/i3?k=100").json())
        deny.write_text("".join(f"i{n}\n" for n in range(10)))
        until(lambda: len(items(server.recommend("i3", k=100).json())) == 10)
        allow.unlink()  # it can't be read: what was read before stays
        until(lambda: any("could not be read again" in line["message"] for line in server.log))
        assert len(items(server.recommend("i3", k=100).json())) == 10
        allow.write_text("i15\n")
        until(lambda: items(server.recommend("i3", k=100).json()) == ["i15"])
        assert items(server.recommend("i3", filter={"brand": ["b0", "b1"]}).json()) == ["i15"]


def test_permissions_are_a_change_of_a_rule_file(tmp_path: Path) -> None:
    """A file that was copied, and could not be read before its permissions were set, is read again."""
    deny = tmp_path / "deny.txt"
    deny.write_text("i5\n")
    before = stamp_of(deny)
    assert stamp_of(deny) == before
    deny.chmod(0o600 if deny.stat().st_mode & 0o077 else 0o644)
    assert stamp_of(deny) != before


def test_rules_stay_when_the_run_is_replaced(run: Path, counted: Path, tmp_path: Path) -> None:
    served = tmp_path / "run"
    shutil.copytree(run, served)
    (tmp_path / "deny.txt").write_text("i5\n")
    with serving(served, "--deny-file", tmp_path / "deny.txt") as server:
        served.rename(tmp_path / "aside")
        shutil.copytree(counted, served)
        until(lambda: server.ask("GET", "/v1/run").json()["model"] == "pop")
        assert {*items(server.recommend("i3", k=100).json())} == {f"i{n}" for n in range(30)} - {"i5"}


def test_a_missing_rule_file_is_refused_at_the_start(run: Path, tmp_path: Path) -> None:
    done = command("serve", run, "--port", 0, "--deny-file", tmp_path / "nowhere.txt")
    assert (done.code, "nowhere.txt can't be read" in done.err.replace("\n", "")) == (2, True), done.err


def test_two_runs_share_the_sessions(run: Path, counted: Path) -> None:
    with serving(run, counted, "--split", "70,30") as server:
        about = server.ask("GET", "/v1/run").json()
        until(lambda: all(one["fingerprint"] for one in server.ask("GET", "/v1/run").json()["split"]))
        first, second = (one["fingerprint"] for one in server.ask("GET", "/v1/run").json()["split"])
        assert (first, [one["share"] for one in about["split"]]) == (about["fingerprint"], [0.7, 0.3])
        by_name = {name: server.recommend("i3", split_by=name).json() for name in map(str, range(100))}
        runs = [one["run"] for one in by_name.values()]
        assert {*runs} == {first, second}
        assert 50 <= runs.count(first) <= 88
        assert all(server.recommend("i4", split_by=name).json()["run"] == by_name[name]["run"] for name in "12345")
        # Without a name, the first click decides, so that a session stays with its run.
        for item in ("i1", "i2", "i3", "i4"):
            assert server.recommend(item).json()["run"] == server.recommend(item, "i9", "i8").json()["run"]
        batch = server.ask("POST", "/v1/recommend/batch", {"sessions": [[f"i{n}"] for n in range(30)]}).json()
        assert [one["run"] for one in batch["answers"]] == [server.recommend(f"i{n}").json()["run"] for n in range(30)]


@pytest.mark.parametrize("split", ["90", "a,b", "-1,2", "0,0", "1,2,3"])
def test_a_wrong_split_is_refused(run: Path, counted: Path, split: str) -> None:
    done = command("serve", run, counted, "--port", 0, "--split", split)
    assert (done.code, "a share for each of the 2 runs" in " ".join(done.err.split())) == (2, True)
