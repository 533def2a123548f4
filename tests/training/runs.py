"""What tests read from the folder of a run."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from posrec.io import WEIGHTS, load_tensors


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def weights_of(run: Path) -> dict[str, Tensor]:
    return load_tensors(run / WEIGHTS)[0]
