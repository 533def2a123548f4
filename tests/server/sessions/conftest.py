"""Both stores of sessions, and a server for each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import Server, serving
from tests.server.sessions.store_process import PROGRAM, AnyStore, SqliteFile, Store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    store = Store(tmp_path_factory.mktemp("redis"))
    store.start()
    yield store
    store.stop()


@pytest.fixture(scope="session", params=["sqlite", "redis"])
def any_store(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AnyStore:
    if request.param == "sqlite":
        return SqliteFile(tmp_path_factory.mktemp("sqlite") / "sessions.sqlite")
    redis: Store = request.getfixturevalue("store")
    return redis


@pytest.fixture(scope="session")
def server(trained: Path, any_store: AnyStore) -> Iterator[Server]:
    with serving(trained, "--session-store", any_store.address()) as server:
        yield server
