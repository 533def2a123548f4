"""The options in docs/serving.md, the Dockerfile and the systemd unit."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, command

pytest.importorskip("granian")

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
OPTIONS = PAGE.partition("\n## Options\n")[2].partition("\n## ")[0]


def test_every_option_is_described() -> None:
    options = set(re.findall(r"--[a-z][a-z-]+", command("serve", "--help").out)) - {
        "--help"
    }
    assert len(options) > 10
    described = set(re.findall(r"`(--[a-z-]+)", OPTIONS))
    assert options - described - {"--no-onnx"} == set()


def test_the_dockerfile_copies_existing_files_and_starts_the_server(
    tmp_path: Path,
) -> None:
    lines = (ROOT / "docs" / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        name
        for line in re.findall(r"^COPY (.*) \S+$", lines, re.MULTILINE)
        for name in line.split()
    ]
    assert {"pyproject.toml", "src"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    started = [
        json.loads(re.findall(rf"^{word} (.*)$", lines, re.MULTILINE)[0])
        for word in ("ENTRYPOINT", "CMD")
    ]
    program, *arguments = started[0]
    outcome = command(*arguments, tmp_path / "nowhere")  # in the place of CMD: the run
    assert (program, len(started[1])) == ("posrec", 1)
    assert (outcome.code, "is not a run folder" in outcome.err) == (2, True)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (ROOT / "docs" / "posrec@.service").read_text(encoding="utf-8")
    program = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)[0]
    (tmp_path / "posrec@.service").write_text(
        unit.replace(program, sys.executable)
    )  # the program must exist
    line = ["systemd-analyze", "verify", tmp_path / "posrec@shop.service"]
    checked = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
