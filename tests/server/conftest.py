"""Servers that several modules ask: starting one takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import Server, serving
from tests.server.store_process import PROGRAM, AnyStore, SqliteFile, Store


@pytest.fixture(scope="session")
def plain_server(trained: Path) -> Iterator[Server]:
    with serving(trained) as server:
        yield server


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
        return SqliteFile(tmp_path_factory.mktemp("sqlite"))
    found: AnyStore = request.getfixturevalue("store")
    return found


@pytest.fixture(scope="session")
def store_server(trained: Path, any_store: AnyStore) -> Iterator[Server]:
    with serving(trained, "--session-store", any_store.address()) as server:
        yield server
