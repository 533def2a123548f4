"""Requests that are not valid, too large, too many or random: each is answered, with a documented
error."""

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.server_process import Answer, Server, serving

pytest.importorskip("granian")

RECOMMEND = "/v1/recommend"
EXPLAIN = "/v1/explain"
MOST = 10_000  # clicks
BODY = 2 << 20  # bytes
LONGEST: list[Any] = ["x" * 1024, "é" * 512, "\U0001f3d4" * 256, -(10**1022)]
TOO_LONG: list[Any] = ["x" * 1025, "é" * 513, "\U0001f3d4" * 257, -(10**1023)]


@pytest.fixture(scope="module")
def server(plain_server: Server) -> Iterator[Server]:
    """No request of this module may be answered with a 5xx."""
    yield plain_server
    assert (
        plain_server.metric('posrec_requests_total{path="/v1/recommend",status="5xx"}')
        == 0
    )


@pytest.fixture(scope="module")
def limited(trained: Path) -> Iterator[Server]:
    """A server that takes less than the default of everything."""
    with serving(
        trained, "--max-length", 3, "--max-body", 1024, "--queue", 2
    ) as server:
        yield server


def refused(answer: Answer, status: int, piece: str = "") -> None:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert list(content) == ["error"]
    assert piece in content["error"]
    assert "\n" not in content["error"]
    assert 10 < len(content["error"]) < 300


def answers(server: Server) -> bool:
    return server.recommend("i3", k=1).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b'{"session": ["i3"',
        b'{"session": [NaN]}',
        b"{'session': ['i3']}",
        b'{"session": ["\\ud800"]}',
        b'{"session": ["i3\xc3"]}',
        json.dumps({"session": ["i3"]}).encode("utf-16"),
    ],
)
def test_a_body_that_is_not_json(server: Server, body: bytes) -> None:
    refused(server.ask("POST", RECOMMEND, body), 400, "the body is not valid JSON")
    assert answers(server)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "text",
        b"null",
        b"1e999",
        b'{"session": [1' + b"0" * 5000 + b"]}",
        {},
        {"session": None},
        {"session": {"0": "i3"}},
        *({"session": [click]} for click in (1.5, None, ["i3"], True, {})),
        {"session": ["i3"], "sesion": []},
    ],
)
def test_wrong_types_and_unknown_fields(server: Server, wrong: Any) -> None:
    refused(server.ask("POST", RECOMMEND, wrong), 422, "the request is not valid")
    assert answers(server)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("k", k) for k in ("5", 1.5, True, None, 0, 1001, -(10**30))),
        ("exclude_seen", 1),
        ("deny", [None]),
    ],
)
def test_wrong_values_of_optional_fields(server: Server, name: str, value: Any) -> None:
    refused(server.recommend("i3", **{name: value}), 422, f"$.{name}")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"session": ' + b"[" * 1_000_000,
        b'{"a":' * 300_000,
        b'{"session": ["i3"], "x": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    ],
)
def test_deep_nesting(server: Server, body: bytes) -> None:
    refused(server.ask("POST", RECOMMEND, body), 422, "the request is not valid")
    assert answers(server)


def test_content_types(server: Server) -> None:
    body = {"session": ["i3"]}
    for kind in (
        "text/xml",
        "multipart/form-data; boundary=x",
        "application/msgpack",
        "application/octet-stream",
        "x",
    ):
        refused(
            server.ask("POST", RECOMMEND, body, Content_Type=kind),
            415,
            kind.partition(";")[0],
        )
    for kind in (
        "Application/JSON; charset=utf-8",
        "text/x+json",
        "application/x-www-form-urlencoded",
        "text/plain",
    ):
        assert server.ask("POST", RECOMMEND, body, Content_Type=kind).status == 200


def test_a_huge_body_in_chunks(server: Server) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=120)
    chunks = (b" " * 65536 for _ in range(20 * BODY // 65536))
    with (
        closing(connection),
        suppress(ConnectionError),
    ):  # a client that goes on sending may lose the answer
        connection.request(
            "POST",
            RECOMMEND,
            chunks,
            {"Transfer-Encoding": "chunked"},
            encode_chunked=True,
        )
        assert connection.getresponse().status == 413
    assert answers(server)


def test_the_largest_body_is_accepted(server: Server) -> None:
    body = json.dumps({"session": ["i3"]}).encode()
    assert server.ask("POST", RECOMMEND, body + b" " * (BODY - len(body))).status == 200
    refused(server.ask("POST", RECOMMEND, body + b" " * (BODY + 1 - len(body))), 413)


def test_very_long_sessions(server: Server) -> None:
    clicks = [f"i{number % 30}" for number in range(MOST)]
    assert (
        server.recommend(*clicks).json()["items"]
        == server.recommend(*clicks[-10:]).json()["items"]
    )
    why = server.ask(
        "POST", EXPLAIN, {"session": clicks, "item": "i5"}
    ).json()  # the model reads the latest ten
    assert [one["position"] for one in why["clicks"]] == list(range(MOST - 10, MOST))
    refused(server.recommend(*clicks, "i3"), 422, "10000")
    unknown = [f"no such thing {number}" for number in range(MOST)]
    answer = server.recommend(*unknown, k=3).json()
    assert (answer["unknown"], answer["popular"], len(answer["items"])) == (
        unknown,
        True,
        3,
    )
    refused(
        server.ask("POST", EXPLAIN, {"session": unknown, "item": "i3"}),
        400,
        "9,995 more",
    )


def test_a_shorter_limit(limited: Server) -> None:
    assert limited.recommend("i3", "i3", "i3").status == 200
    for path, body in (
        (RECOMMEND, {"session": ["i3"] * 4}),
        (EXPLAIN, {"session": ["i3"] * 4, "item": "i5"}),
        ("/v1/recommend/batch", {"sessions": [["i3"], ["i3"] * 4]}),
    ):
        refused(limited.ask("POST", path, body), 400, "at most 3")
    refused(limited.ask("POST", RECOMMEND, b" " * 1025), 413)


def test_overload(limited: Server) -> None:
    expected = limited.recommend("i3", "i4", k=20).json()
    refused_before = limited.metric("posrec_refused_total")

    def ask(_: int) -> list[Answer]:
        return [limited.recommend("i3", "i4", k=20) for _ in range(20)]

    with ThreadPoolExecutor(60) as clients:
        answered = [
            answer for several in clients.map(ask, range(60)) for answer in several
        ]
    statuses = Counter(answer.status for answer in answered)
    assert set(statuses) == {200, 503}
    assert statuses.total() == 1200
    for answer in answered:
        if answer.status == 503:
            refused(answer, 503, "try again")
            assert answer.headers["retry-after"] == "1"
        else:
            given = answer.json()
            assert [one["item"] for one in given["items"]] == [
                one["item"] for one in expected["items"]
            ]
            scores = [one["score"] for one in expected["items"]]
            assert [one["score"] for one in given["items"]] == pytest.approx(
                scores, abs=1e-4
            )
    assert limited.metric("posrec_refused_total") == refused_before + statuses[503]
    assert limited.metric("posrec_queue_length") == 0


@pytest.mark.parametrize("item", TOO_LONG, ids=range(len(TOO_LONG)))
def test_a_longer_id_is_refused(plain_server: Server, item: Any) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        (RECOMMEND, {"session": ["i3", item]}),
        (RECOMMEND, {"session": [], "allow": [item]}),
        (RECOMMEND, {"session": [], "deny": ["i3", item]}),
        (EXPLAIN, {"session": [item], "item": "i3"}),
        (EXPLAIN, {"session": ["i3"], "item": item}),
        ("/v1/sessions/long/click", {"item": item}),
    ]
    for path, body in wrong:
        refused(plain_server.ask("POST", path, body), 422, "1,024 bytes")
    assert (
        plain_server.recommend(session_id="long").json()["unknown"] == []
    )  # nothing was stored


@pytest.mark.parametrize("item", LONGEST, ids=range(len(LONGEST)))
def test_the_longest_id_is_accepted(plain_server: Server, item: Any) -> None:
    assert plain_server.recommend("i3", item, allow=[item, "i3"], deny=[item]).json()[
        "unknown"
    ] == [str(item)]
    assert (
        plain_server.ask(
            "POST", "/v1/explain", {"session": ["i3"], "item": item}
        ).status
        == 404
    )
    assert (
        plain_server.ask("POST", "/v1/sessions/longest/click", {"item": item}).status
        == 200
    )
