"""The options in docs/serving.md, the Dockerfile and the systemd unit."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, command

DOCS = ROOT / "docs"


def test_every_option_is_described() -> None:
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    section = page.partition("\n## Options\n")[2].partition("\n## ")[0]
    described = set(re.findall(r"`(--[a-z-]+)", section))
    options = set(re.findall(r"--[a-z][a-z-]+", command("serve", "--help").out))
    assert len(options) > 10
    assert options - described <= {"--help", "--no-onnx"}


def test_the_dockerfile_copies_existing_files_and_starts_the_server(
    tmp_path: Path,
) -> None:
    text = (DOCS / "Dockerfile").read_text(encoding="utf-8")
    copied = " ".join(re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)).split()
    assert {"pyproject.toml", "src"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    (entry_point,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    (default_run,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    program, *arguments = json.loads(entry_point)
    assert program == "posrec"
    assert len(json.loads(default_run)) == 1
    outcome = command(*arguments, tmp_path / "nowhere")  # instead of the default run
    assert outcome.code == 2
    assert "run folder" in outcome.err


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DOCS / "posrec@.service").read_text(encoding="utf-8")
    (program,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    existing = unit.replace(program, sys.executable)
    (tmp_path / "posrec@.service").write_text(existing)
    line = ["systemd-analyze", "verify", str(tmp_path / "posrec@shop.service")]
    checked = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
