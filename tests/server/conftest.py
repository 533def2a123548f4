"""The server that many modules ask without changing its state: starting one takes seconds."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.server.server_process import Server, serving

if find_spec("granian") is None:  # the packages of posrec[serve] are not installed
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def plain_server(trained: Path) -> Iterator[Server]:
    with serving(trained) as server:
        yield server
