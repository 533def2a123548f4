"""schemathesis sends a server what its OpenAPI document allows, and much that it forbids."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.server_process import Server

pytest.importorskip("schemathesis")

CONFIG = Path(__file__).with_name("schemathesis.toml")
DOCUMENT = "/openapi/openapi.json"


def assert_passes(server: Server, folder: Path, options: str) -> str:
    """What schemathesis prints, once it has found nothing."""
    command = f"{sys.executable} -m schemathesis.cli --config-file {CONFIG} --no-color"
    url = f"http://127.0.0.1:{server.port}{DOCUMENT}"
    done = subprocess.run(
        [*command.split(), "run", url, *options.split()],
        cwd=folder,
        env={**os.environ, "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=False,
    )
    # A generated URL may fill many pages, so the lines are cut.
    lines = (done.stdout + done.stderr[-2000:]).splitlines()
    assert done.returncode == 0, "\n".join(line[:500] for line in lines)
    assert server.recommend("i3").status == 200
    return done.stdout


def test_requests_have_no_other_fields_than_those_documented(
    plain_server: Server,
) -> None:
    document = plain_server.get(DOCUMENT).json()
    schemas = document["components"]["schemas"]
    names = []
    for path in document["paths"].values():
        for operation in path.values():
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                names.append(content["schema"]["$ref"].rpartition("/")[2])
    assert len(names) == 6
    assert not any(schemas[name]["additionalProperties"] for name in names)


def test_a_few_examples_of_everything(plain_server: Server, tmp_path: Path) -> None:
    options = "--max-examples 10 --seed 1 --phases coverage,fuzzing"
    printed = assert_passes(plain_server, tmp_path, options)
    assert "13 selected / 13 total" in printed


@pytest.mark.slow
def test_many_examples_and_sequences(plain_server: Server, tmp_path: Path) -> None:
    assert_passes(plain_server, tmp_path, "--max-examples 300")
