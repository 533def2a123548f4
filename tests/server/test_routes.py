"""Every route over a real socket: the same results as the Recommender gives in Python."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.fixtures import with_attributes
from tests.helpers import items_of
from tests.server.asgi import in_process
from tests.server.server_process import ANSWERED, Server, serving, until

BATCH = "/v1/recommend/batch"


@pytest.fixture(scope="module")
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With columns; one of them has a value of 100 kB. The last five items are new, and known as
    those of a model are that reads attributes."""
    rec = Recommender.load(trained, "cpu")
    rec.vocabulary.columns.update(
        brand=[f"b{n % 3}" for n in range(30)],
        price=[n + 0.5 for n in range(30)],
        story=["x" * 1000] * 30,
        note=["x" * 100_000 if item == "i3" else "" for item in rec.vocabulary.ids],
    )
    popularity = rec.run.popularity * (np.arange(30) < 25)
    rec.run = with_attributes(replace(rec.run, popularity=popularity), "brand")
    folder = tmp_path_factory.mktemp("answers") / "run"
    rec.save(folder, export=False)
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run, "--log-requests") as server:
        yield server


@pytest.fixture(scope="module")
def recommender(run: Path) -> Recommender:
    return Recommender(load_run(run), "cpu")


@pytest.mark.parametrize(
    "session", [["i3", "i4"], [], ["zz"], [f"i{n % 30}" for n in range(50)]]
)
@pytest.mark.parametrize(
    "options",
    [
        {"filter": {"brand": ["b0", "b1"], "price": {"max": 20}}},
        {"filter": {"brand": "b2"}, "fields": ["price", "brand"], "k": 3},
        {"pin": ["i9", "zz", "i20"], "deny": ["i20"]},
        {"boost": {"brand": {"b1": 4.0}}},
        {"diversify": 0.6},
        {"diversify": "brand", "k": 3},
        {"diversify": {"column": "brand", "most": 2}, "k": 5},
        {"k": 1000, "exclude_seen": True},
        {"k": 29, "exclude": "current"},
        {"k": 5, "exclude": "seen", "filter": {"price": {"above": 3.5, "below": 20}}},
        {"allow": ["zz"]},
        {"allow": ["i6", "i4", "zz"], "exclude_seen": True},
        # Expensive by estimate, so they are computed in the background:
        {
            "diversify": 0.6,
            "boost": {"brand": {"b1": 4.0, "b2": 2.0}},
            "pin": ["i9"],
            "fields": ["brand"],
        },
        {"allow": [f"i{n % 25}" for n in range(5000)]},
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_the_same_answer_as_in_python(
    server: Server,
    recommender: Recommender,
    session: list[str],
    options: dict[str, Any],
) -> None:
    answer = server.recommend(*session, **options)
    expected = recommender.recommend(session, **options)
    assert answer.items == items_of(expected)
    content = answer.json()
    assert content["popular"] == expected.popular
    assert content["unknown"] == list(expected.unknown)
    for item, recommended in zip(content["items"], expected, strict=True):
        assert item["score"] == pytest.approx(recommended.score, abs=1e-4)
        assert item.get("fields") == recommended.fields
        assert item.get("pinned", False) == recommended.pinned


def test_new_items_are_marked_in_answers(
    server: Server, recommender: Recommender
) -> None:
    options: dict[str, Any] = {"k": 10, "explore": 0.2, "now": "2026-11-20"}

    def explored(answer: Any) -> list[str]:
        return [item["item"] for item in answer["items"] if item.get("explored")]

    expected = recommender.recommend(["i3", "i4"], **options)
    answer = server.recommend("i3", "i4", **options)
    assert answer.items == items_of(expected)
    new_items = [item.item for item in expected if item.explored]
    assert explored(answer.json()) == new_items
    assert len(new_items) == 2
    batch = server.post(BATCH, {"sessions": [["i3", "i4"], []], **options})
    first, second = batch.json()["answers"]
    assert first["items"] == answer.json()["items"]
    assert len(explored(second)) == 2


@pytest.mark.parametrize(
    ("options", "status", "keyword"),
    [
        ({"filter": {"colour": "red"}}, 400, "colour"),
        ({"filter": {"brand": {"max": 1}}}, 400, "brand"),
        ({"filter": ["brand"]}, 422, "filter"),
        ({"fields": ["colour"]}, 400, "colour"),
        ({"boost": {"brand": {"b1": -1}}}, 400, "1000"),
        ({"diversify": 2}, 422, "diversify"),
        ({"diversify": {"column": "brand"}}, 422, "most"),
        ({"diversify": {"column": "colour", "most": 2}}, 400, "colour"),
        ({"exclude": "last"}, 422, "exclude"),
        ({"explore": 0.6}, 422, "explore"),
        ({"explore_days": 0}, 422, "explore_days"),
        ({"now": "soon"}, 400, "now holds 'soon', which is not a date or time"),
        ({"now": [1]}, 422, "now"),
        ({"pin": "i3"}, 422, "pin"),
    ],
)
def test_a_wrong_request_is_refused(
    server: Server, options: dict[str, Any], status: int, keyword: str
) -> None:
    answer = server.recommend("i3", **options)
    assert answer.status == status, answer.body
    assert keyword in answer.error


def test_a_batch_has_the_answers_of_its_sessions(server: Server) -> None:
    sessions = [["i3", "i4"], [], ["i5"], ["zz"], *([f"i{n % 30}"] for n in range(40))]
    rules = {"filter": {"price": {"max": 25}}, "k": 4}
    answers = server.post(BATCH, {"sessions": sessions, **rules}).json()["answers"]
    assert len({answer["id"] for answer in answers}) == len(answers) == len(sessions)
    for session, answer in zip(sessions[:8], answers[:8], strict=True):
        alone = server.recommend(*session, **rules)
        assert [item["item"] for item in answer["items"]] == alone.items
        assert answer["popular"] == alone.json()["popular"]
        assert answer["unknown"] == alone.json()["unknown"]
    assert server.post(BATCH, {"sessions": []}).json() == {"answers": []}
    assert server.post(BATCH, {"sessions": [["i3"]] * 1001}).status == 422
    wrong_rule = {"sessions": [["i3"]], "filter": {"x": 1}}
    assert server.post(BATCH, wrong_rule).status == 400


@pytest.mark.parametrize("session", [["i3", "i4", "zz"], []])
@pytest.mark.parametrize("number", [3, 30, 1000])  # the last ones in the background
def test_candidates_are_ranked_as_in_python(
    server: Server, recommender: Recommender, session: list[str], number: int
) -> None:
    candidates = [f"i{7 * n}" for n in range(number)]
    expected = recommender.rank(session, candidates)
    answer = server.post("/v1/rank", {"session": session, "candidates": candidates})
    assert sorted(answer.items) == sorted(items_of(expected))
    content = answer.json()
    scores = [item["score"] for item in content["items"]]
    assert scores == pytest.approx([item.score for item in expected], abs=1e-4)
    unknown = (list(expected.unknown), list(expected.unknown_candidates))
    assert (content["unknown"], content["unknown_candidates"]) == unknown
    assert content["popular"] == expected.popular


@pytest.mark.parametrize("candidates", [[], ["i3"] * 1001, "i3", ["i" * 2000]])
def test_too_many_candidates_are_refused(server: Server, candidates: Any) -> None:
    answer = server.post("/v1/rank", {"session": ["i3"], "candidates": candidates})
    assert answer.status == 422
    assert "candidates" in answer.error or "1,024 bytes" in answer.error


@pytest.mark.parametrize(
    ("sessions", "options", "status"),
    [
        (1000, {"k": 30, "fields": ["story"]}, 400),  # 1,000 characters for each item
        (1000, {"k": 30, "fields": ["brand"]}, 200),
        (100, {"k": 30, "fields": ["story"]}, 200),
        (1000, {"k": 1, "fields": ["note"], "allow": ["i3"]}, 400),  # the longest text
    ],
)
def test_the_size_of_an_answer_is_limited(
    server: Server, sessions: int, options: dict[str, Any], status: int
) -> None:
    answer = server.post(BATCH, {"sessions": [["i4"]] * sessions, **options})
    assert answer.status == status
    assert (b"16 MB" in answer.body) is (status == 400)


def test_similar_items(server: Server, recommender: Recommender) -> None:
    similar = recommender.similar_items("i3", 5)
    assert server.get("/v1/similar/i3?k=5").items == items_of(similar)
    rule = {"brand": ["b1"], "price": {"min": 4}}
    path = f"/v1/similar/i3?fields=brand&filter={quote(json.dumps(rule))}"
    filtered = server.get(path)
    expected = recommender.similar_items("i3", filter=rule, fields=["brand"])
    assert filtered.items == items_of(expected)
    assert {item["fields"]["brand"] for item in filtered.json()["items"]} == {"b1"}
    assert server.get("/v1/similar/zz").status == 404
    assert server.get("/v1/similar/i3?k=0").status == 422
    assert server.get("/v1/similar/i3?filter=brand").status == 400


def test_answers_name_the_run(server: Server) -> None:
    about = server.get("/v1/run").json()
    fingerprint = about["fingerprint"]
    first, second = (server.recommend("i3").json() for _ in range(2))
    assert first["run"] == second["run"] == fingerprint
    assert first["id"] != second["id"]
    assert first["id"].startswith(fingerprint)
    assert (about["model"], about["items"], about["max_length"]) == ("posrec", 30, 10)
    assert about["trained"]["epochs"] == 8
    assert about["columns"] == ["brand", "price", "story", "note"]
    run = {"name": "run", "fingerprint": fingerprint, "share": 1, "split_by": "0"}
    assert about["split"] == [run]


def test_two_runs_share_the_sessions(run: Path, counted: Path) -> None:
    with serving(run, counted, "--split", "70,30") as server:

        def answering_run(*session: str, **options: Any) -> str:
            return str(server.recommend(*session, **options).json()["run"])

        about = server.get("/v1/run").json()
        first, second = (run["fingerprint"] for run in about["split"])
        assert first == about["fingerprint"]
        assert [run["share"] for run in about["split"]] == [0.7, 0.3]
        runs = [answering_run("i3", split_by=str(number)) for number in range(100)]
        assert set(runs) == {first, second}
        assert 50 <= runs.count(first) <= 88
        # The session plays no role when the request names what to split by.
        again = [answering_run("i4", split_by=str(number)) for number in range(5)]
        assert again == runs[:5]
        for named in about["split"]:
            options = {"split_by": named["split_by"]}
            assert answering_run("i3", **options) == named["fingerprint"]
            described = server.get(f"/v1/run?split_by={named['split_by']}").json()
            assert described["fingerprint"] == named["fingerprint"]
            best = server.recommend("i3", k=1, **options).json()["items"][0]
            question = {"session": ["i3"], "item": best["item"], **options}
            why = server.post("/v1/explain", question).json()
            assert why["score"] == pytest.approx(best["score"], abs=1e-4)
        # Without a name, the first click decides, so that a session stays with its run.
        sessions = [[f"i{n}", "i9"] for n in range(30)]
        answers = server.post(BATCH, {"sessions": sessions}).json()["answers"]
        by_first_click = [answering_run(f"i{n}") for n in range(30)]
        assert [answer["run"] for answer in answers] == by_first_click


def test_unknown_items_are_named_and_counted(server: Server) -> None:
    before = server.metric("posrec_unknown_items_total")
    answer = server.recommend("i3", "nothing like it", 7).json()
    assert (answer["unknown"], answer["popular"]) == (["nothing like it", "7"], False)
    assert server.metric("posrec_unknown_items_total") == before + 2


def test_explanations_add_up(server: Server, recommender: Recommender) -> None:
    session = ["i3", "zz", "i4"]
    why = server.post("/v1/explain", {"session": session, "item": "i5"}).json()
    expected = recommender.explain(session, "i5")
    clicks = why["clicks"]
    effects = [click.effect for click in expected.clicks]
    assert why["score"] == pytest.approx(expected.score, abs=1e-4)
    assert sum(part["value"] for part in why["parts"]) == pytest.approx(
        why["score"], abs=1e-4
    )
    assert [(click["item"], click["position"]) for click in clicks] == [
        ("i3", 0),
        ("i4", 2),
    ]
    assert [click["left_out"] for click in clicks] == pytest.approx(effects, abs=1e-4)
    assert sum(click["attention"] for click in clicks) == pytest.approx(1, abs=1e-3)
    assert why["unknown"] == ["zz"]
    assert (why["probability"], why["repeat_chance"]) == (None, None)
    assert server.get("/v1/run").json()["log_probabilities"] is False
    unknown_item = {"session": ["i3"], "item": "zz"}
    assert server.post("/v1/explain", unknown_item).status == 404
    unknown_session = {"session": ["zz"], "item": "i3"}
    assert server.post("/v1/explain", unknown_session).status == 400


def test_items_are_found_by_id(server: Server, recommender: Recommender) -> None:
    matching = server.get("/v1/items?query=I1&limit=50")
    assert set(matching.items) == {"i1", *(f"i{n}" for n in range(10, 20))}
    clicks = [item["clicks"] for item in matching.json()["items"]]
    assert clicks == sorted(clicks, reverse=True)
    everything = server.get("/v1/items?limit=1000").json()["items"]
    clicks_of_all = sum(item["clicks"] for item in everything)
    assert clicks_of_all == int(recommender.popularity.sum())
    most_clicked = server.get("/v1/items").items
    assert len(most_clicked) == 20
    assert server.get("/v1/items?query=%0A").items == most_clicked  # white space
    assert server.get("/v1/items?query=nope").items == []


def test_without_a_folder_there_is_no_feedback(server: Server) -> None:
    shown = {"answer": "a", "event": "shown", "items": ["i1"]}
    answer = server.post("/v1/feedback", shown)
    assert answer.status == 404
    assert "--feedback" in answer.error


def test_counts_and_log(server: Server) -> None:
    answered = server.metric(ANSWERED)
    measured = server.metric("posrec_recommend_seconds_count")
    assert server.recommend("i3").status == 200
    assert server.metric(ANSWERED) == answered + 1
    assert server.metric("posrec_recommend_seconds_count") == measured + 1
    line = until(lambda: server.logged("request"))[-1]
    assert {"time", "level", "process", "method", "path", "status", "ms"} <= set(line)


def test_a_model_with_probabilities(trained_plus: Path) -> None:
    rec = Recommender.load(trained_plus, "cpu")
    with in_process(trained_plus) as server:
        assert server.get("/v1/run").json()["log_probabilities"] is True
        answer = server.recommend("i3", "i4", "i3", k=5)
        expected = rec.recommend(["i3", "i4", "i3"], 5)
        assert answer.items == items_of(expected)
        scores = [item["score"] for item in answer.json()["items"]]
        assert scores == pytest.approx([item.score for item in expected], abs=1e-3)
        question = {"session": ["i3", "i4"], "item": "i3"}
        why = server.post("/v1/explain", question).json()
    explained = rec.explain(["i3", "i4"], "i3")
    assert why["probability"] == pytest.approx(explained.probability)
    assert why["repeat_chance"] == pytest.approx(explained.repeat_chance)
    parts = {part["name"]: part["value"] for part in why["parts"]}
    assert parts == pytest.approx(explained.parts, abs=1e-4)
    repeats = [click["reads"]["clicked before"] for click in why["clicks"]]
    assert repeats == pytest.approx(
        [click.attention["clicked before"] for click in explained.clicks]
    )
