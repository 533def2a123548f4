"""Sessions in a real redis-server: clicks add up and expire, and the store may go down and come back."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from posrec.server.session_store import CONNECTIONS, EXPIRY, MAX_CLICKS, TIMEOUT, SessionStore, key
from tests.server.server_process import Server, serving, until
from tests.server.store_process import PROGRAM, Store

pytest.importorskip("uvicorn")
pytest.importorskip("redis")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")


@pytest.fixture
def server(store_server: Server) -> Server:
    return store_server


def click(server: Server, session: str, item: object, **more: object) -> list[str]:
    answer = server.ask("POST", f"/v1/sessions/{session}/click", {"item": item, **more})
    assert answer.status == 200, answer.body
    return [one["item"] for one in answer.json()["items"]]


def best(server: Server, *session: str, **more: object) -> list[str]:
    return [one["item"] for one in server.recommend(*session, **more).json()["items"]]


def test_clicks_add_up(server: Server, store: Store) -> None:
    assert click(server, "anna", "i3") == best(server, "i3")
    assert click(server, "bert", "i9") == best(server, "i9")
    assert click(server, "anna", "i4", k=3) == best(server, "i3", "i4", k=3)
    assert click(server, "anna", "i8", exclude="seen") == best(server, "i3", "i4", "i8", exclude_seen=True)
    assert "i5" not in click(server, "anna", "i5", k=29, exclude="current")
    assert 0 < store.client.ttl(key("anna")) <= EXPIRY == 1800


def test_stored_clicks_come_before_those_of_the_request(server: Server) -> None:
    click(server, "carl", "i3")
    assert best(server, "i4", session_id="carl") == best(server, "i3", "i4")
    assert best(server, "i4", session_id="carl") == best(server, "i3", "i4")  # the clicks of a request are not stored
    assert server.recommend(session_id="nobody").json()["popular"]


def test_an_expired_session_starts_empty(server: Server, store: Store) -> None:
    click(server, "dora", "i3")
    store.client.pexpire(key("dora"), 1)
    until(lambda: not store.client.exists(key("dora")))
    assert click(server, "dora", "i4") == best(server, "i4")


def test_only_the_latest_clicks_are_stored_and_read(server: Server, store: Store) -> None:
    for _ in range(MAX_CLICKS + 5):
        click(server, "many", "x" * 1024)
    assert store.client.llen(key("many")) == MAX_CLICKS
    store.client.rpush(key("others"), "zz", *["y"] * MAX_CLICKS)  # not written by this server
    assert server.recommend(session_id="others").json()["unknown"] == ["y"] * MAX_CLICKS


def test_the_store_goes_down_and_comes_back(server: Server, store: Store) -> None:
    store.stop()
    try:
        down = server.ask("POST", "/v1/sessions/emil/click", {"item": "i3"})
        assert (down.status, down.headers["retry-after"]) == (503, "1")
        assert "session store" in down.json()["error"]
        assert server.recommend("i3").status == 200
        assert server.recommend("i3", session_id="emil").status == 503
        assert server.ask("GET", "/readyz").status == 200
    finally:
        store.start()
    until(lambda: server.ask("POST", "/v1/sessions/emil/click", {"item": "i3"}).status == 200)
    assert click(server, "emil", "i4") in (best(server, "i3", "i4"), best(server, "i3", "i3", "i4"))
    assert server.metric("posrec_store_errors_total") >= 2


def test_a_store_that_hangs_times_out(trained: Path, store: Store) -> None:
    """With the timeout that `posrec serve` has by default."""
    with serving(trained, "--session-store", f"redis://127.0.0.1:{store.port}/0") as server:
        until(lambda: server.ask("POST", "/v1/sessions/fritz/click", {"item": "i3"}).status == 200)
        with store.hanging():
            assert server.ask("POST", "/v1/sessions/fritz/click", {"item": "i4"}).status == 503
            assert server.recommend("i3", session_id="fritz").status == 503
            assert server.recommend("i3").status == 200
        until(lambda: server.recommend("i5", session_id="fritz").status == 200)
    # The store may have received the click that it did not answer.
    assert store.client.lrange(key("fritz"), 0, -1) in (["i3"], ["i3", "i4"])


@pytest.mark.parametrize(("address", "seconds"), [("redis://host", TIMEOUT), ("redis://host?socket_timeout=2.5", 2.5)])
def test_the_address_may_have_another_timeout(address: str, seconds: float) -> None:
    assert SessionStore(address).client.connection_pool.connection_kwargs["socket_timeout"] == seconds


def test_more_clicks_at_once_than_connections(store: Store) -> None:
    async def click_everywhere() -> list[list[str]]:
        sessions = SessionStore(store.address())
        store.client.client_pause(200)  # milliseconds, so that all connections are in use
        stored = await asyncio.gather(*(sessions.add(f"hans {n}", "i3") for n in range(2 * CONNECTIONS)))
        await sessions.close()
        return stored

    assert asyncio.run(click_everywhere()) == [["i3"]] * (2 * CONNECTIONS)


def test_a_click_that_is_refused_is_not_stored(server: Server, store: Store) -> None:
    """A client that asks again would store it twice."""
    wrong = {"item": "i3", "filter": {"colour": "red"}}
    assert server.ask("POST", "/v1/sessions/ida/click", wrong).status == 400
    assert not store.client.exists(key("ida"))


def test_of_many_clicks_at_once_those_that_are_answered_are_stored(trained: Path, store: Store) -> None:
    def click_once(number: int) -> int:
        return server.ask("POST", f"/v1/sessions/many-{number}/click", {"item": "i3"}).status

    with (
        serving(trained, "--session-store", store.address(), "--queue", 4) as server,
        ThreadPoolExecutor(40) as clients,
    ):
        with store.hanging():  # four fill the queue, and wait for the store
            asked = [clients.submit(click_once, number) for number in range(40)]
            until(lambda: sum(one.done() for one in asked) == 36)
        statuses = [one.result() for one in asked]
    assert sorted(statuses) == [200] * 4 + [503] * 36
    assert [store.client.llen(key(f"many-{number}")) for number in range(40)] == [int(one == 200) for one in statuses]


def test_the_log_has_the_reason_of_a_store_that_refuses(trained: Path, store: Store) -> None:
    with serving(trained, "--session-store", f"redis://shop:wrong@127.0.0.1:{store.port}/0") as server:
        (line,) = until(lambda: server.said("the session store failed"))
        assert "password" in line["reason"]
        assert "wrong@" not in str(server.log)
        assert server.ask("POST", "/v1/sessions/jan/click", {"item": "i3"}).status == 503


def test_a_key_of_another_redis_type_is_no_crash(server: Server, store: Store) -> None:
    store.client.set(key("odd"), "text")
    assert server.ask("POST", "/v1/sessions/odd/click", {"item": "i3"}).status == 503


def test_clicks_that_are_not_utf8_are_an_error_of_the_store(server: Server, store: Store) -> None:
    store.client.rpush(key("bytes"), b"\xff\xfe", "i3")
    for _ in range(3):
        assert server.ask("POST", "/v1/sessions/bytes/click", {"item": "i3"}).status == 503
        assert server.recommend("i4", session_id="bytes").status == 503
        assert click(server, "after", "i5") == best(server, "i5", session_id="none")
        store.client.delete(key("after"))
    assert store.client.llen(key("bytes")) == 2  # the click is not stored
