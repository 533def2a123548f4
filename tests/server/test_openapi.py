"""schemathesis asks a running server whatever its OpenAPI document allows, and much that it forbids."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.server_process import Server, serving
from tests.server.store_process import PROGRAM, Store

pytest.importorskip("litestar")
pytest.importorskip("uvicorn")
pytest.importorskip("schemathesis")


@pytest.fixture(scope="module")
def server(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a session store, where there is one to be had."""
    with ExitStack() as stack:
        options: list[str] = []
        if PROGRAM is not None:
            store = Store(tmp_path_factory.mktemp("redis"))
            store.start()
            stack.callback(store.stop)
            options = ["--session-store", f"redis://127.0.0.1:{store.port}/0"]
        yield stack.enter_context(serving(trained, *options))


def schemathesis(server: Server, folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """No 5xx; documented statuses, content types, headers and schemas; what does not fit is refused.

    That whatever fits is accepted is left out: to JSON Schema 5.0 is a whole number, and it can't know which items are
    known.
    """
    url = f"http://127.0.0.1:{server.port}/openapi/openapi.json"
    line = [sys.executable, "-m", "schemathesis.cli", "run", url, *map(str, options), "--no-color"]
    left_out = ["--exclude-checks", "positive_data_acceptance"]
    environment = {**os.environ, "COLUMNS": "150"}
    return subprocess.run([*line, *left_out], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_few_examples_of_everything(server: Server, tmp_path: Path) -> None:
    done = schemathesis(server, tmp_path, "--max-examples", 10, "--seed", 1, "--phases", "coverage,fuzzing")
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    assert "8 selected / 8 total" in done.stdout
    assert server.recommend("i3").status == 200


@pytest.mark.slow
def test_many_examples_and_sequences(server: Server, tmp_path: Path) -> None:
    done = schemathesis(server, tmp_path, "--max-examples", 300)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    assert server.recommend("i3").status == 200
