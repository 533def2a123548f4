"""Requests that are not valid, too large or too many."""

import http.client
import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.server_process import Answer, Server, serving

pytest.importorskip("uvicorn")

# One is computed in batches, the other in the background.
RECOMMEND, EXPLAIN = "/v1/recommend", "/v1/explain"
REST: dict[str, dict[str, Any]] = {RECOMMEND: {}, EXPLAIN: {"item": "i5"}}
both_paths = pytest.mark.parametrize("path", [RECOMMEND, EXPLAIN])
MOST = 10_000  # clicks
BODY = 2 << 20  # bytes


@pytest.fixture(scope="module")
def server(plain_server: Server) -> Iterator[Server]:
    """No request of this module may be answered with a 5xx."""
    yield plain_server
    assert plain_server.metric('posrec_requests_total{path="/v1/recommend",status="5xx"}') == 0
    assert plain_server.metric('posrec_requests_total{path="/v1/explain",status="5xx"}') == 0


@pytest.fixture(scope="module")
def limited(trained: Path) -> Iterator[Server]:
    """A server that takes less than the default of everything."""
    with serving(trained, "--max-length", 3, "--max-body", 1024, "--queue", 2) as server:
        yield server


def refused(answer: Answer, status: int, piece: str = "") -> None:
    """The answer is one plain sentence with this status."""
    assert answer.status == status, answer.body[:300]
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert list(content) == ["error"]
    assert piece in content["error"]
    assert "\n" not in content["error"]
    assert 10 < len(content["error"]) < 300


def answers(server: Server) -> bool:
    return server.recommend("i3", k=1).status == 200


@both_paths
@pytest.mark.parametrize("body", [
    b"", b"{", b"nonsense", b'{"session": ["i3"', b"\0\0\0", b'{"session": [NaN]}',
    b"{'session': ['i3']}", b'{"session": ["\\ud800"]}', json.dumps({"session": ["i3"]}).encode("utf-16"),
])  # fmt: skip
def test_a_body_that_is_not_json(server: Server, path: str, body: bytes) -> None:
    refused(server.ask("POST", path, body), 400, "the body is not valid JSON")
    assert answers(server)


@both_paths
def test_more_than_one_json_value(server: Server, path: str) -> None:
    body = json.dumps({"session": ["i3"], **REST[path]}).encode()
    assert server.ask("POST", path, body).status == 200
    refused(server.ask("POST", path, body + b" {}"), 400, "the body is not valid JSON")


@both_paths
@pytest.mark.parametrize("body", [b'{"session": ["\xff\xfe"]}', b'{"session": ["i3\xc3"]}', b"\xff\xfe\x00"])
def test_a_body_that_is_not_utf_8(server: Server, path: str, body: bytes) -> None:
    refused(server.ask("POST", path, body), 400, "the body is not valid JSON")
    assert answers(server)


@both_paths
@pytest.mark.parametrize("wrong", [
    [], "text", 7, b"null", b"1e999", b'{"session": [1' + b"0" * 5000 + b"]}",
    {}, {"session": None}, {"session": "i3"}, {"session": {"0": "i3"}},
    {"session": [1.5]}, {"session": [None]}, {"session": [["i3"]]}, {"session": [True]}, {"session": [{}]},
    {"session": ["i3"], "sesion": []}, {"session": ["i3"], "session_id": 7, "exclude_seen": "yes"},
])  # fmt: skip
def test_wrong_types_and_unknown_fields(server: Server, path: str, wrong: Any) -> None:
    body = {**wrong, **REST[path]} if isinstance(wrong, dict) else wrong
    refused(server.ask("POST", path, body), 422, "the request is not valid")
    assert answers(server)


@pytest.mark.parametrize("wrong", [{"k": "5"}, {"k": 1.5}, {"k": True}, {"k": None}, {"exclude_seen": 1},
                                   {"allow": "i3"}, {"deny": [None]}, {"session_id": ["anna"]}])  # fmt: skip
def test_wrong_types_of_optional_fields(server: Server, wrong: dict[str, Any]) -> None:
    refused(server.recommend("i3", **wrong), 422, f"$.{next(iter(wrong))}")


@pytest.mark.parametrize("k", [0, -1, 1001, 10**9, 10**30, -(10**30)])
def test_k_out_of_bounds(server: Server, k: int) -> None:
    refused(server.recommend("i3", k=k), 422, "$.k")
    assert len(server.recommend("i3", k=1000).json()["items"]) == 30


@both_paths
@pytest.mark.parametrize("body", [b"[" * 1_000_000, b'{"session": ' + b"[" * 1_000_000, b'{"a":' * 300_000,
                                  b'{"session": ["i3"], "x": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"])  # fmt: skip
def test_deep_nesting(server: Server, path: str, body: bytes) -> None:
    refused(server.ask("POST", path, body), 422, "the request is not valid")
    assert answers(server)


@both_paths
def test_content_types(server: Server, path: str) -> None:
    body = {"session": ["i3"], **REST[path]}
    for kind in ("text/xml", "multipart/form-data; boundary=x", "application/msgpack", "application/octet-stream", "x"):
        refused(server.ask("POST", path, body, Content_Type=kind), 415, kind.partition(";")[0])
    for kind in ("Application/JSON; charset=utf-8", "text/x+json", "application/x-www-form-urlencoded", "text/plain"):
        assert server.ask("POST", path, body, Content_Type=kind).status == 200


@both_paths
def test_a_huge_content_length(server: Server, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {1 << 40}\r\n\r\n"
    with socket.create_connection(server.address, timeout=120) as client:
        client.sendall(head.encode() + b" " * (BODY + 1))
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert json.loads(answer.read()) == {"error": "the body is too large"}
    assert answers(server)


@both_paths
def test_a_huge_body_in_chunks(server: Server, path: str) -> None:
    """The client goes on sending after the answer, and can still read it."""
    connection = http.client.HTTPConnection(*server.address, timeout=120)
    chunks = (b" " * 65536 for _ in range(20 * BODY // 65536))
    connection.request("POST", path, chunks, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())) == (413, {"error": "the body is too large"})
    connection.close()
    assert answers(server)


@both_paths
def test_the_largest_body_is_accepted(server: Server, path: str) -> None:
    body = json.dumps({"session": ["i3"], **REST[path]}).encode()
    assert server.ask("POST", path, body + b" " * (BODY - len(body))).status == 200
    refused(server.ask("POST", path, body + b" " * (BODY + 1 - len(body))), 413)


@both_paths
def test_very_long_sessions(server: Server, path: str) -> None:
    clicks = [f"i{number % 30}" for number in range(MOST)]
    short = server.ask("POST", path, {"session": clicks[-10:], **REST[path]}).json()
    long = server.ask("POST", path, {"session": clicks, **REST[path]}).json()  # the model reads the latest ten
    if path == RECOMMEND:
        assert long["items"] == short["items"]
    else:
        assert long["score"] == pytest.approx(short["score"], abs=1e-5)
        assert [one["position"] for one in long["clicks"]] == list(range(MOST - 10, MOST))
    refused(server.ask("POST", path, {"session": [*clicks, "i3"], **REST[path]}), 422, "10000")


def test_a_very_long_session_of_unknown_items(server: Server) -> None:
    unknown = [f"no such thing {number}" for number in range(MOST)]
    answer = server.recommend(*unknown, k=3).json()
    assert (answer["unknown"], answer["popular"], len(answer["items"])) == (unknown, True, 3)
    refused(server.ask("POST", EXPLAIN, {"session": unknown, "item": "i3"}), 400, "9,995 more")


@both_paths
def test_a_shorter_limit(limited: Server, path: str) -> None:
    assert limited.ask("POST", path, {"session": ["i3"] * 3, **REST[path]}).status == 200
    refused(limited.ask("POST", path, {"session": ["i3"] * 4, **REST[path]}), 400, "at most 3")
    refused(limited.ask("POST", path, b" " * 1025), 413)


def test_a_405_lists_the_allowed_methods(server: Server) -> None:
    for method in ("GET", "PUT", "DELETE", "TRACE"):
        answer = server.ask(method, RECOMMEND)
        refused(answer, 405)
        assert "POST" in answer.headers["allow"]


def test_overload(limited: Server) -> None:
    """Two requests may wait and sixty clients ask at a time: every answer is complete or a 503."""
    expected = limited.recommend("i3", "i4", k=20).json()
    refused_before = limited.metric("posrec_refused_total")

    def ask(_: int) -> list[Answer]:
        return [limited.recommend("i3", "i4", k=20) for _ in range(20)]

    with ThreadPoolExecutor(60) as clients:
        answered = [answer for several in clients.map(ask, range(60)) for answer in several]
    statuses = Counter(answer.status for answer in answered)
    assert set(statuses) == {200, 503}
    assert statuses.total() == 1200
    for answer in answered:
        if answer.status == 503:
            refused(answer, 503, "try again")
            assert answer.headers["retry-after"] == "1"
        else:
            given = answer.json()
            assert [one["item"] for one in given["items"]] == [one["item"] for one in expected["items"]]
            scores = [one["score"] for one in expected["items"]]
            assert [one["score"] for one in given["items"]] == pytest.approx(scores, abs=1e-4)
    assert limited.metric("posrec_refused_total") == refused_before + statuses[503]
    assert limited.metric("posrec_queue_length") == 0
    assert limited.recommend("i3", "i4", k=20).json()["items"] == expected["items"]
