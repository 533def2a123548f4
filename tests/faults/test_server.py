"""What the world does to a server: garbage, floods, slow and many clients, killed workers."""

import json
import os
import resource
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posrec.fitting import fit_run
from posrec.listener import SilentListener
from tests.helpers import chain_shop
from tests.serving.server_process import Answer, Server, serving, until

pytest.importorskip("litestar")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    quick = {"d": 8, "epochs": 1, "batch_size": 32, "max_length": 10}
    data = chain_shop(folder, seed=0)
    return fit_run(data, "posrec", folder / "run", quick, "cpu", listener=SilentListener())[0].path


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run, "--max-body", 300_000) as server:
        yield server


def is_refusal(answer: Answer, *statuses: int) -> bool:
    return answer.status in statuses and set(answer.json()) == {"error"} and len(answer.json()["error"]) > 5


GARBAGE = [
    b"", b"{", b"\xff\xfe\x00", b"null", b"[]", b'"text"', b"1e999", b'{"session": ["\\ud800"]}', b"{" * 100_000,
    b"[" * 100_000, b'{"session": NaN}', b'{"session": [1' + b"0" * 5000 + b"]}", b'{"session": ["a"]} trailing',
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/explain"])
@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage(server: Server, path: str, body: bytes) -> None:
    answer = server.ask("POST", path, body)
    assert is_refusal(answer, 400, 422), (answer.status, answer.body)


WRONG = [
    {}, {"session": None}, {"session": "1"}, {"session": {"a": 1}}, {"session": [None]}, {"session": [1.5]},
    {"session": [True]}, {"session": [["1"]]}, {"session": ["1"], "k": 0}, {"session": ["1"], "k": -1},
    {"session": ["1"], "k": 10**9}, {"session": ["1"], "k": "20"}, {"session": ["1"], "k": 1.5},
    {"session": ["1"], "k": None}, {"session": ["1"], "k": 10**30}, {"session": ["1"], "exclude_seen": "yes"},
    {"session": ["1"], "allow": "1"}, {"session": ["1"], "deny": [{}]}, {"session": ["1"], "sesion_id": "typo"},
    {"session": ["1"] * 10_001},
]  # fmt: skip


@pytest.mark.parametrize("body", WRONG, ids=lambda body: json.dumps(body)[:40])
def test_wrong_types_and_bounds(server: Server, body: Any) -> None:
    answer = server.ask("POST", "/v1/recommend", body)
    assert is_refusal(answer, 422), (answer.status, answer.body)


def test_ten_thousand_clicks_are_read(server: Server) -> None:
    long = server.recommend(*(str(n % 30) for n in range(10_000)))
    assert long.status == 200
    latest = server.recommend(*(str(n % 30) for n in range(9_990, 10_000)))
    items = [[one["item"] for one in answer.json()["items"]] for answer in (long, latest)]
    assert items[0] == items[1]


def test_huge_bodies(server: Server) -> None:
    huge = b'{"session": ["' + b"x" * 400_000 + b'"]}'
    for path in ("/v1/recommend", "/v1/explain"):
        assert is_refusal(server.ask("POST", path, huge), 413)
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:  # no length is announced
        client.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(100):
                client.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        except OSError:
            pass  # it hung up on us, as it may
        else:
            assert client.recv(12).endswith(b"413")
    assert server.recommend("1").status == 200


def test_slow_and_vanishing_clients_are_in_nobodys_way(server: Server) -> None:
    clients = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(50)]
    for number, client in enumerate(clients):
        client.sendall(b'POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n{"ses'[: 10 + number * 2])
    assert server.recommend("1").status == 200
    for client in clients:
        client.close()
    whole = b'POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n{"session": ["1"]}'
    for _ in range(50):  # asks and does not wait for the answer
        with socket.create_connection(("127.0.0.1", server.port), 10) as client:
            client.sendall(whole)
    assert server.recommend("1").status == 200
    assert server.metric('posrec_requests_total{path="/v1/recommend",status="5xx"}') == 0


def test_a_body_that_never_comes_is_given_up(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 30) as client:
        client.sendall(b'POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n{"ses')
        assert client.recv(12) == b"HTTP/1.1 408"


def test_two_thousand_open_connections(server: Server) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    number = min(2000, most - 200)
    clients = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(number)]
    try:
        assert server.recommend("1").status == 200
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for client in clients:
            client.sendall(request)
        assert Counter(client.recv(12) for client in clients) == {b"HTTP/1.1 200": number}
    finally:
        for client in clients:
            client.close()


def test_a_flood_is_refused_quickly_and_the_rest_answered(run: Path) -> None:
    with serving(run, "--queue", 2) as server:
        whole = b'POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n{"session": ["1"]}'
        clients = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(300)]
        for client in clients:
            client.sendall(whole)
        answers = [client.recv(65536) for client in clients]
        statuses = Counter(answer[9:12] for answer in answers)
        assert set(statuses) == {b"200", b"503"}, statuses
        refused = next(answer for answer in answers if answer[9:12] == b"503")
        assert b"retry-after: 1" in refused.lower()
        assert server.recommend("1").status == 200
        assert server.metric("posrec_refused_total") == statuses[b"503"]
        for client in clients:
            client.close()


def test_a_killed_worker_is_replaced(run: Path) -> None:
    with serving(run, "--workers", 2) as server:
        workers = until(lambda: len(said := {line["process"] for line in server.said("serving")}) == 2 and said)
        assert server.process.pid not in workers
        os.kill(victim := workers.pop(), signal.SIGKILL)
        statuses: Counter[int] = Counter()

        def asking() -> None:
            for _ in range(20):
                try:
                    statuses[server.recommend("1").status] += 1
                except OSError:
                    statuses[0] += 1  # it had been taken by the worker that died

        threads = [threading.Thread(target=asking) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert set(statuses) <= {200, 0}
        assert statuses[200] > 70
        replaced = until(lambda: {line["process"] for line in server.said("serving")} - workers - {victim})
        assert len(replaced) == 1
        counted = server.metric("posrec_recommend_seconds_count")
        assert counted >= statuses[200]  # summed over the workers, the dead one's kept


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["session", "k", "exclude_seen", "allow", "deny", "session_id", "item", "other"]), ANY
)


@given(FIELDS, st.sampled_from(["/v1/recommend", "/v1/explain", "/v1/sessions/a/click", "/v1/sessions/%00/click"]))
@settings(max_examples=150)
def test_no_request_is_answered_with_a_crash(server: Server, body: dict[str, Any], path: str) -> None:
    answer = server.ask("POST", path, body)
    assert answer.status == 200 or is_refusal(answer, 400, 404, 422), (answer.status, answer.body)


@given(st.text(st.characters(codec="utf-8"), max_size=12), st.text("0123456789-+.eE x", max_size=6))
def test_any_search_is_answered(server: Server, query: str, limit: str) -> None:
    from urllib.parse import urlencode

    answer = server.ask("GET", "/v1/items?" + urlencode({"query": query, "limit": limit}))
    assert answer.status == 200 or is_refusal(answer, 400, 422), (answer.status, answer.body)
