"""The server that many modules ask without changing its state: starting one takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import Server, serving


@pytest.fixture(scope="session")
def plain_server(trained: Path) -> Iterator[Server]:
    with serving(trained) as server:
        yield server
