"""What docs/serving.md shows is answered, and the table of options is whole."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from posrec.data.vocabulary import Vocabulary
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.runs import Run, save_run
from tests.helpers import ROOT, command
from tests.serving.server_process import serving

pytest.importorskip("litestar")
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def test_every_curl_is_answered(tmp_path: Path) -> None:
    items = ["SAN1-BLU-2", "TEN5-BLK-2", "SAN5-BLU-2", "CLI2-BLU-2"]
    config = {"model": "posrec", "items": len(items), "d": 8}
    model = PosRec(len(items), PosRecConfig(d=8))
    save_run(Run(tmp_path, model, Vocabulary(items), config, torch.arange(len(items))), tmp_path / "run")
    shown = re.findall(r"^curl -s (.*)$", PAGE, re.MULTILINE)
    assert len(shown) == 5
    with serving(tmp_path / "run") as server:
        for line in shown:
            address, *data = shlex.split(line)
            body = data[1].encode() if data else None
            answer = server.ask("POST" if data else "GET", address.removeprefix("localhost:8000"), body)
            assert answer.status == 200, (line, answer.body)


def test_every_option_is_described() -> None:
    options = set(re.findall(r"--[a-z][a-z-]+", command("serve", "--help").out)) - {"--help"}
    assert len(options) > 10
    described = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert options - described - {"--no-onnx"} == set()
