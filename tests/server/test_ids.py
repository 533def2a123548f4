"""Item ids have at most 1,024 bytes wherever a client may send them."""

from typing import Any

import pytest

from posrec.server.session_store import MAX_CLICKS, key
from tests.server.server_process import Answer, Server
from tests.server.store_process import Store

pytest.importorskip("uvicorn")
pytest.importorskip("redis")

LONGEST: list[Any] = ["x" * 1024, "é" * 512, "\U0001f3d4" * 256, 10**1022, -(10**1022)]
TOO_LONG: list[Any] = ["x" * 1025, "é" * 513, "\U0001f3d4" * 257, 10**1024, -(10**1023), "x" * 10**6]


def refused(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.ask("POST", path, body)
    assert (answer.status, "an item id has more than 1,024 bytes" in answer.json()["error"]) == (422, True)


@pytest.mark.parametrize("item", TOO_LONG, ids=range(len(TOO_LONG)))
def test_a_longer_id_is_refused(store_server: Server, item: Any) -> None:
    for wrong in ({"session": ["i3", item]}, {"session": [], "allow": [item]}, {"session": [], "deny": ["i3", item]}):
        refused(store_server, "/v1/recommend", wrong)
    for wrong in ({"session": [item], "item": "i3"}, {"session": ["i3"], "item": item}):
        refused(store_server, "/v1/explain", wrong)
    refused(store_server, "/v1/sessions/long/click", {"item": item})
    assert store_server.recommend(session_id="long").json()["unknown"] == []  # nothing was stored


@pytest.mark.parametrize("item", LONGEST, ids=range(len(LONGEST)))
def test_the_longest_id_is_accepted(store_server: Server, item: Any) -> None:
    assert store_server.recommend("i3", item, allow=[item, "i3"], deny=[item]).json()["unknown"] == [str(item)]
    assert store_server.ask("POST", "/v1/explain", {"session": ["i3"], "item": item}).status == 404
    assert store_server.ask("POST", "/v1/sessions/longest/click", {"item": item}).status == 200


def answered(store_server: Server, path: str, body: dict[str, Any]) -> Answer:
    answer = store_server.ask("POST", path, body)
    assert answer.status == 200, answer.body
    return answer


def test_stored_clicks_are_bounded(store_server: Server, store: Store) -> None:
    for _ in range(MAX_CLICKS + 5):
        answer = answered(store_server, "/v1/sessions/many/click", {"item": "x" * 1024})
    assert len(answer.body) < 300_000
    store.client.rpush(key("others"), *["i4"] * (MAX_CLICKS + 5), "zz")  # not written by this server
    others = {"session": [], "session_id": "others"}
    assert answered(store_server, "/v1/recommend", others).json()["unknown"] == ["zz"]
    store.client.rpush(key("others"), *["y"] * MAX_CLICKS)
    assert len(answered(store_server, "/v1/recommend", others).json()["unknown"]) == MAX_CLICKS
