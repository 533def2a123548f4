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
from tests.server.server_process import Server, serving, until

pytest.importorskip("granian")


@pytest.fixture(scope="module")
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rec = Recommender.load(trained, "cpu")
    brands = [f"b{n % 3}" for n in range(30)]
    prices = [n + 0.5 for n in range(30)]
    rec.vocabulary.columns.update(brand=brands, price=prices, story=["x" * 1000] * 30)
    rec.vocabulary.columns["note"] = [
        "x" * 100_000 if item == "i3" else "" for item in rec.vocabulary.ids
    ]
    rec.run = replace(
        rec.run, popularity=rec.run.popularity * (np.arange(30) < 25)
    )  # the last five are new
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


def items(answer: Any) -> list[str]:
    return [one["item"] for one in answer["items"]]


@pytest.mark.parametrize(
    "session", [["i3", "i4"], [], ["zz"], [f"i{n % 30}" for n in range(50)]]
)
@pytest.mark.parametrize(
    "more",
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
    assert [one["score"] for one in given["items"]] == pytest.approx(
        [one.score for one in expected], abs=1e-4
    )
    assert [one.get("fields") for one in given["items"]] == [
        one.fields for one in expected
    ]
    assert [one.get("pinned", False) for one in given["items"]] == [
        one.pinned for one in expected
    ]
    assert (given["popular"], given["unknown"]) == (
        expected.popular,
        list(expected.unknown),
    )


def test_new_items_are_marked_in_answers(
    server: Server, recommender: Recommender
) -> None:
    wanted: dict[str, Any] = {"k": 10, "explore": 0.2}
    answer = server.recommend("i3", "i4", **wanted).json()
    expected = recommender.recommend(["i3", "i4"], **wanted)
    assert [(one["item"], one.get("explored", False)) for one in answer["items"]] == [
        (one.item, one.explored) for one in expected
    ]
    assert sum(one.explored for one in expected) == 2
    batch = server.ask(
        "POST", "/v1/recommend/batch", {"sessions": [["i3", "i4"], []], **wanted}
    ).json()["answers"]
    assert batch[0]["items"] == answer["items"]
    assert sum(one.get("explored", False) for one in batch[1]["items"]) == 2


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        ({"filter": {"colour": "red"}}, 400, "no column 'colour'"),
        ({"filter": {"brand": {"max": 1}}}, 400, "brand"),
        ({"filter": ["brand"]}, 422, "filter"),
        ({"fields": ["colour"]}, 400, "no column 'colour'"),
        ({"boost": {"brand": {"b1": -1}}}, 400, "1000"),
        ({"diversify": 2}, 422, "diversify"),
        ({"diversify": {"column": "brand"}}, 422, "most"),
        ({"diversify": {"column": "colour", "most": 2}}, 400, "no column 'colour'"),
        ({"exclude": "last"}, 422, "exclude"),
        ({"explore": 0.6}, 422, "explore"),
        ({"pin": "i3"}, 422, "pin"),
    ],
)
def test_wrong_requests_have_a_plain_message(
    server: Server, more: dict[str, Any], status: int, message: str
) -> None:
    answer = server.recommend("i3", **more)
    assert (answer.status, message in answer.json()["error"]) == (status, True), (
        answer.body
    )


def test_a_batch_has_the_answers_of_its_sessions(server: Server) -> None:
    sessions = [["i3", "i4"], [], ["i5"], ["zz"], *([f"i{n % 30}"] for n in range(40))]
    rules = {"filter": {"price": {"max": 25}}, "k": 4}
    answer = server.ask("POST", "/v1/recommend/batch", {"sessions": sessions, **rules})
    assert answer.status == 200, answer.body
    answers = answer.json()["answers"]
    assert len(answers) == len(sessions)
    for session, one in zip(sessions[:8], answers[:8], strict=True):
        alone = server.recommend(*session, **rules).json()
        assert (items(one), one["popular"], one["unknown"]) == (
            items(alone),
            alone["popular"],
            alone["unknown"],
        )
    assert len({one["id"] for one in answers}) == len(sessions)
    assert server.ask("POST", "/v1/recommend/batch", {"sessions": []}).json() == {
        "answers": []
    }
    assert (
        server.ask("POST", "/v1/recommend/batch", {"sessions": [["i3"]] * 1001}).status
        == 422
    )
    assert (
        server.ask(
            "POST", "/v1/recommend/batch", {"sessions": [["i3"]], "filter": {"x": 1}}
        ).status
        == 400
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (
            {"sessions": [["i3"]] * 1000, "k": 30, "fields": ["story"]},
            400,
        ),  # 1,000 characters for each item
        ({"sessions": [["i3"]] * 1000, "k": 30, "fields": ["brand"]}, 200),
        ({"sessions": [["i3"]] * 100, "k": 30, "fields": ["story"]}, 200),
        (
            {"sessions": [["i4"]] * 1000, "k": 1, "fields": ["note"], "allow": ["i3"]},
            400,
        ),  # the longest text alone
    ],
)
def test_the_size_of_an_answer_is_limited(
    server: Server, body: dict[str, Any], status: int
) -> None:
    answer = server.ask("POST", "/v1/recommend/batch", body)
    assert (answer.status, b"at most 16 MB" in answer.body) == (status, status == 400)


def test_similar_items(server: Server, recommender: Recommender) -> None:
    plain = server.ask("GET", "/v1/similar/i3?k=5").json()
    assert items(plain) == [one.item for one in recommender.similar_items("i3", 5)]
    wanted = {"brand": ["b1"], "price": {"min": 4}}
    filtered = server.ask(
        "GET", f"/v1/similar/i3?fields=brand&filter={quote(json.dumps(wanted))}"
    ).json()
    expected = recommender.similar_items("i3", filter=wanted, fields=["brand"])
    assert items(filtered) == [one.item for one in expected]
    assert {one["fields"]["brand"] for one in filtered["items"]} == {"b1"}
    assert server.ask("GET", "/v1/similar/zz").status == 404
    assert server.ask("GET", "/v1/similar/i3?k=0").status == 422
    assert server.ask("GET", "/v1/similar/i3?filter=brand").status == 400


def test_answers_name_the_run(server: Server) -> None:
    about = server.ask("GET", "/v1/run").json()
    answers = [server.recommend("i3").json() for _ in range(2)]
    assert {one["run"] for one in answers} == {about["fingerprint"]}
    assert answers[0]["id"] != answers[1]["id"]
    assert answers[0]["id"].startswith(about["fingerprint"])
    assert (about["model"], about["items"], about["max_length"]) == ("posrec", 30, 10)
    assert (about["trained"]["epochs"], about["columns"]) == (
        8,
        ["brand", "price", "story", "note"],
    )
    assert about["split"] == [
        {
            "name": "run",
            "fingerprint": about["fingerprint"],
            "share": 1,
            "split_by": "0",
        }
    ]


def test_two_runs_share_the_sessions(run: Path, counted: Path) -> None:
    with serving(run, counted, "--split", "70,30") as server:
        about = server.ask("GET", "/v1/run").json()
        first, second = (one["fingerprint"] for one in about["split"])
        assert (first, [one["share"] for one in about["split"]]) == (
            about["fingerprint"],
            [0.7, 0.3],
        )
        runs = [
            server.recommend("i3", split_by=str(number)).json()["run"]
            for number in range(100)
        ]
        assert {*runs} == {first, second}
        assert 50 <= runs.count(first) <= 88
        assert [
            server.recommend("i4", split_by=str(number)).json()["run"]
            for number in range(5)
        ] == runs[:5]
        for one in about["split"]:
            name = one["split_by"]
            assert (
                server.recommend("i3", split_by=name).json()["run"]
                == one["fingerprint"]
            )
            assert (
                server.ask("GET", f"/v1/run?split_by={name}").json()["fingerprint"]
                == one["fingerprint"]
            )
            best = server.recommend("i3", split_by=name, k=1).json()["items"][0]
            why = server.ask(
                "POST",
                "/v1/explain",
                {"session": ["i3"], "item": best["item"], "split_by": name},
            ).json()
            assert why["score"] == pytest.approx(best["score"], abs=1e-4)
        # Without a name, the first click decides, so that a session stays with its run.
        batch = server.ask(
            "POST",
            "/v1/recommend/batch",
            {"sessions": [[f"i{n}", "i9"] for n in range(30)]},
        ).json()
        assert [one["run"] for one in batch["answers"]] == [
            server.recommend(f"i{n}").json()["run"] for n in range(30)
        ]


def test_unknown_items_are_named_and_counted(server: Server) -> None:
    before = server.metric("posrec_unknown_items_total")
    known = server.recommend("i3", "nothing like it", 7).json()
    assert (known["unknown"], known["popular"]) == (["nothing like it", "7"], False)
    assert server.metric("posrec_unknown_items_total") == before + 2


def test_explanations_add_up(server: Server, recommender: Recommender) -> None:
    answer = server.ask(
        "POST", "/v1/explain", {"session": ["i3", "zz", "i4"], "item": "i5"}
    ).json()
    expected = recommender.explain(["i3", "zz", "i4"], "i5")
    assert answer["score"] == pytest.approx(expected.score, abs=1e-4)
    assert sum(part["value"] for part in answer["parts"]) == pytest.approx(
        answer["score"], abs=1e-4
    )
    assert [(one["item"], one["position"]) for one in answer["clicks"]] == [
        ("i3", 0),
        ("i4", 2),
    ]
    assert [one["left_out"] for one in answer["clicks"]] == pytest.approx(
        [c.effect for c in expected.clicks], abs=1e-4
    )
    assert sum(one["attention"] for one in answer["clicks"]) == pytest.approx(
        1, abs=1e-3
    )
    assert answer["unknown"] == ["zz"]
    assert (answer["probability"], answer["repeat_chance"]) == (None, None)
    assert server.ask("GET", "/v1/run").json()["log_probabilities"] is False
    assert (
        server.ask("POST", "/v1/explain", {"session": ["i3"], "item": "zz"}).status
        == 404
    )
    assert (
        server.ask("POST", "/v1/explain", {"session": ["zz"], "item": "i3"}).status
        == 400
    )


def test_items_are_found_by_id(server: Server, recommender: Recommender) -> None:
    found = server.ask("GET", "/v1/items?query=I1&limit=50").json()["items"]
    assert {one["item"] for one in found} == {"i1", *(f"i{n}" for n in range(10, 20))}
    assert [one["clicks"] for one in found] == sorted(
        (one["clicks"] for one in found), reverse=True
    )
    everything = server.ask("GET", "/v1/items?limit=1000").json()["items"]
    assert sum(one["clicks"] for one in everything) == int(recommender.popularity.sum())
    assert len(server.ask("GET", "/v1/items").json()["items"]) == 20
    assert (
        server.ask("GET", "/v1/items?query=%0A").json()["items"] != []
    )  # only white space: the most clicked
    assert server.ask("GET", "/v1/items?query=nope").json()["items"] == []


def test_without_a_folder_there_is_no_feedback(server: Server) -> None:
    answer = server.ask(
        "POST", "/v1/feedback", {"answer": "a", "event": "shown", "items": ["i1"]}
    )
    assert (answer.status, "--feedback" in answer.json()["error"]) == (404, True)


def test_counts_and_log(server: Server) -> None:
    before = server.metric('posrec_requests_total{path="/v1/recommend",status="2xx"}')
    seen = server.metric("posrec_recommend_seconds_count")
    assert server.recommend("i3").status == 200
    assert (
        server.metric('posrec_requests_total{path="/v1/recommend",status="2xx"}')
        == before + 1
    )
    assert server.metric("posrec_recommend_seconds_count") == seen + 1
    line = until(lambda: server.said("request"))[-1]
    assert {"time", "level", "process", "method", "path", "status", "ms"} <= set(line)


def test_a_model_with_probabilities(trained_plus: Path) -> None:
    rec = Recommender.load(trained_plus, "cpu")
    with serving(trained_plus) as server:
        assert server.ask("GET", "/v1/run").json()["log_probabilities"] is True
        found = server.recommend("i3", "i4", "i3", k=5).json()["items"]
        expected = rec.recommend(["i3", "i4", "i3"], 5)
        assert [one["item"] for one in found] == [one.item for one in expected]
        assert [one["score"] for one in found] == pytest.approx(
            [one.score for one in expected], abs=1e-3
        )
        answer = server.ask(
            "POST", "/v1/explain", {"session": ["i3", "i4"], "item": "i3"}
        ).json()
        why = rec.explain(["i3", "i4"], "i3")
        assert (answer["probability"], answer["repeat_chance"]) == pytest.approx(
            (why.probability, why.repeat_chance)
        )
        assert {
            part["name"]: part["value"] for part in answer["parts"]
        } == pytest.approx(why.parts, abs=1e-4)
        shares = [click["reads"]["clicked before"] for click in answer["clicks"]]
        assert shares == pytest.approx(
            [click.attention["clicked before"] for click in why.clicks]
        )
