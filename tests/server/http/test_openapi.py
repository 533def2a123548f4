"""schemathesis sends a running server what its OpenAPI document allows, and much that it forbids."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.server_process import Server

pytest.importorskip("granian")
pytest.importorskip("schemathesis")

CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture
def server(plain_server: Server) -> Server:
    return plain_server


def schemathesis(
    server: Server, folder: Path, *options: object
) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{server.port}/openapi/openapi.json"
    line = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(CONFIG),
        "--no-color",
        "run",
        url,
    ]
    environment = {**os.environ, "COLUMNS": "150"}
    return subprocess.run(
        [*line, *map(str, options)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def report(done: subprocess.CompletedProcess[str]) -> str:
    """What schemathesis printed. A generated URL may fill many pages, so the lines are cut."""
    return "\n".join(
        line[:500] for line in (done.stdout + done.stderr[-2000:]).splitlines()
    )


def test_requests_have_no_other_fields_than_those_documented(server: Server) -> None:
    document = server.ask("GET", "/openapi/openapi.json").json()
    schemas = document["components"]["schemas"]
    operations = [
        operation for path in document["paths"].values() for operation in path.values()
    ]
    bodies = [
        one["requestBody"]["content"]["application/json"]["schema"]
        for one in operations
        if "requestBody" in one
    ]
    assert len(bodies) == 5
    assert [
        schemas[body["$ref"].rpartition("/")[2]]["additionalProperties"]
        for body in bodies
    ] == [False] * 5


def test_a_few_examples_of_everything(server: Server, tmp_path: Path) -> None:
    done = schemathesis(
        server,
        tmp_path,
        "--max-examples",
        10,
        "--seed",
        1,
        "--phases",
        "coverage,fuzzing",
    )
    assert done.returncode == 0, report(done)
    assert "12 selected / 12 total" in done.stdout
    assert server.recommend("i3").status == 200


@pytest.mark.slow
def test_many_examples_and_sequences(server: Server, tmp_path: Path) -> None:
    done = schemathesis(server, tmp_path, "--max-examples", 300)
    assert done.returncode == 0, report(done)
    assert server.recommend("i3").status == 200
