"""Requests that are not valid, too large or too many: each is answered, with a documented error."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import Answer
from tests.server.raw import ask, head
from tests.server.server_process import Server, serving

RECOMMEND = "/v1/recommend"
EXPLAIN = "/v1/explain"
MOST_CLICKS = 10_000
MOST_BYTES = 2 << 20
LONGEST_IDS: list[Any] = ["x" * 1024, "é" * 512, "\U0001f3d4" * 256, -(10**1022)]
TOO_LONG_IDS: list[Any] = ["x" * 1025, "é" * 513, "\U0001f3d4" * 257, -(10**1023)]
NUMBERS = range(len(LONGEST_IDS))  # instead of the ids, in the names of the tests


@pytest.fixture(scope="module")
def server(plain_server: Server) -> Iterator[Server]:
    """No request of this module may be answered with a 5xx."""
    yield plain_server
    failed = 'posrec_requests_total{path="/v1/recommend",status="5xx"}'
    assert plain_server.metric(failed) == 0


@pytest.fixture(scope="module")
def limited(trained: Path) -> Iterator[Server]:
    """A server that takes less than the default of everything."""
    options = ("--max-length", 3, "--max-body", 1024, "--queue", 2)
    with serving(trained, *options) as server:
        yield server


def assert_refused(answer: Answer, status: int, keyword: str = "") -> None:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    assert keyword in answer.error
    assert "\n" not in answer.error
    assert 10 < len(answer.error) < 300


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
    assert_refused(server.post(RECOMMEND, body), 400, "JSON")
    assert answers(server)


@pytest.mark.parametrize(
    "body",
    [
        [],
        "text",
        b"null",
        b"1e999",
        b'{"session": [1' + b"0" * 5000 + b"]}",
        {},
        {"session": None},
        {"session": {"0": "i3"}},
        {"session": [1.5]},
        {"session": [None]},
        {"session": [["i3"]]},
        {"session": [True]},
        {"session": [{}]},
        {"session": ["i3"], "sesion": []},
    ],
)
def test_wrong_types_and_unknown_fields(server: Server, body: Any) -> None:
    assert_refused(server.post(RECOMMEND, body), 422, "not valid")
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
    assert_refused(server.recommend("i3", **{name: value}), 422, f"$.{name}")


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
    assert_refused(server.post(RECOMMEND, body), 422, "not valid")
    assert answers(server)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/xml", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/msgpack", 415),
        ("application/octet-stream", 415),
        ("x", 415),
        ("Application/JSON; charset=utf-8", 200),
        ("text/x+json", 200),
        ("application/x-www-form-urlencoded", 200),
        ("text/plain", 200),
    ],
)
def test_content_types(server: Server, content_type: str, status: int) -> None:
    body = {"session": ["i3"]}
    answer = server.post(RECOMMEND, body, Content_Type=content_type)
    assert answer.status == status
    if status == 415:
        assert_refused(answer, 415, content_type.partition(";")[0])


def test_a_huge_body_in_chunks(server: Server) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=120)
    chunks = (b" " * 65536 for _ in range(20 * MOST_BYTES // 65536))
    headers = {"Transfer-Encoding": "chunked"}
    # A client that goes on sending may lose the answer.
    with closing(connection), suppress(ConnectionError):
        connection.request("POST", RECOMMEND, chunks, headers, encode_chunked=True)
        assert connection.getresponse().status == 413
    assert answers(server)


def test_the_largest_body_is_accepted(server: Server) -> None:
    body = json.dumps({"session": ["i3"]}).encode()
    largest = body.ljust(MOST_BYTES)
    assert server.post(RECOMMEND, largest).status == 200
    # Only announced: a client that still sends when it is refused may lose the answer.
    too_large = head("POST", RECOMMEND, f"Content-Length: {MOST_BYTES + 1}")
    assert_refused(ask(server, too_large), 413)


def test_very_long_sessions(server: Server) -> None:
    clicks = [f"i{number % 30}" for number in range(MOST_CLICKS)]
    latest = clicks[-10:]  # which the model reads
    answer = server.recommend(*clicks).json()
    assert answer["items"] == server.recommend(*latest).json()["items"]
    why = server.post(EXPLAIN, {"session": clicks, "item": "i5"}).json()
    positions = [click["position"] for click in why["clicks"]]
    assert positions == list(range(MOST_CLICKS - 10, MOST_CLICKS))
    assert_refused(server.recommend(*clicks, "i3"), 422, "10000")


def test_very_long_sessions_of_unknown_items(server: Server) -> None:
    unknown = [f"no such thing {number}" for number in range(MOST_CLICKS)]
    answer = server.recommend(*unknown, k=3).json()
    assert (answer["unknown"], answer["popular"]) == (unknown, True)
    assert len(answer["items"]) == 3
    refused = server.post(EXPLAIN, {"session": unknown, "item": "i3"})
    assert_refused(refused, 400, "9,995 more")


def test_a_shorter_limit(limited: Server) -> None:
    assert limited.recommend("i3", "i3", "i3").status == 200
    for path, body in (
        (RECOMMEND, {"session": ["i3"] * 4}),
        (EXPLAIN, {"session": ["i3"] * 4, "item": "i5"}),
        ("/v1/recommend/batch", {"sessions": [["i3"], ["i3"] * 4]}),
    ):
        assert_refused(limited.post(path, body), 400, "at most 3")
    assert_refused(limited.post(RECOMMEND, b" " * 1025), 413)


def test_more_clients_than_the_queue_holds_are_all_answered(limited: Server) -> None:
    expected = limited.recommend("i3", "i4", k=20)
    scores = [item["score"] for item in expected.json()["items"]]
    refused_before = limited.metric("posrec_refused_total")

    def ask(_: int) -> Answer:
        return limited.recommend("i3", "i4", k=20)

    with ThreadPoolExecutor(60) as clients:
        answered = list(clients.map(ask, range(1200)))
    refused = [answer for answer in answered if answer.status != 200]
    for answer in answered:
        if answer.status == 200:
            assert answer.items == expected.items
            received = [item["score"] for item in answer.json()["items"]]
            assert received == pytest.approx(scores, abs=1e-4)
    for answer in refused:  # a busy machine
        assert_refused(answer, 503, "try again")
        assert answer.headers["retry-after"] == "1"
    assert len(refused) < 600
    assert limited.metric("posrec_refused_total") == refused_before + len(refused)
    assert limited.metric("posrec_queue_length") == 0


@pytest.mark.parametrize("item", TOO_LONG_IDS, ids=NUMBERS)
def test_a_longer_id_is_refused(server: Server, item: Any) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        (RECOMMEND, {"session": ["i3", item]}),
        (RECOMMEND, {"session": [], "allow": [item]}),
        (RECOMMEND, {"session": [], "deny": ["i3", item]}),
        (EXPLAIN, {"session": [item], "item": "i3"}),
        (EXPLAIN, {"session": ["i3"], "item": item}),
        ("/v1/sessions/long/click", {"item": item}),
    ]
    for path, body in requests:
        assert_refused(server.post(path, body), 422, "1,024 bytes")
    stored = server.recommend(session_id="long").json()
    assert stored["unknown"] == []


@pytest.mark.parametrize("item", LONGEST_IDS, ids=NUMBERS)
def test_the_longest_id_is_accepted(server: Server, item: Any) -> None:
    answer = server.recommend("i3", item, allow=[item, "i3"], deny=[item])
    assert answer.json()["unknown"] == [str(item)]
    assert server.post(EXPLAIN, {"session": ["i3"], "item": item}).status == 404
    assert server.post("/v1/sessions/longest/click", {"item": item}).status == 200
