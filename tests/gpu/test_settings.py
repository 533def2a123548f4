"""Every setting that is accepted trains on a GPU: by a slower path where a kernel can't. Skipped
without a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from posrec.fitting.fit import fit_run
from posrec.progress import SilentProgress
from posrec.testing import write_dataset

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SETTINGS: list[dict[str, Any]] = [
    {"d": 16, "heads": 1},
    {"d": 300, "heads": 1, "layers": 2},
    {"d": 320, "heads": 8},
    {"d": 512, "heads": 4, "layers": 4},
    {"d": 1024, "heads": 1},
    {"d": 200, "heads": 2, "max_length": 200},
    {"d": 1024, "heads": 2, "max_length": 200},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_trains(
    settings: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With sessions of 200 clicks; and the compiler's warnings do not reach the terminal."""
    random = torch.Generator().manual_seed(0)
    lengths = [200, 150, 60] + [5] * 100
    log = []
    for length in lengths:
        items = torch.randint(60, (length,), generator=random).tolist()
        log.append([str(item) for item in items])
    data = write_dataset(tmp_path / "data", log, log[-20:])
    training = {**settings, "protocol": "paper", "epochs": 2, "batch_size": 256}
    _, outcome = fit_run(
        data,
        "posrec-plus",
        tmp_path / "run",
        training,
        "cuda",
        progress=SilentProgress(),
        export=False,
    )
    assert outcome.ranks.isfinite().all()
    assert "Warning" not in "".join(capfd.readouterr())
