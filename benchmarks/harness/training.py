"""A training of PosRec that is run step by step, and the log of a training."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.epoch import EpochRunner
from posrec.training.optimizers import make_optimizer
from posrec.training.settings import Settings

CPU = torch.device("cpu")


class Training:
    """PosRec in training."""

    def __init__(
        self,
        samples: SessionDataset,
        items: int,
        settings: Settings,
        max_length: int,
        device: torch.device = CPU,
    ) -> None:
        torch.manual_seed(0)
        self.samples = samples.to(device)
        self.settings = settings
        self.model = PosRec(items, PosRecConfig(max_length=max_length)).to(device)
        self.optimizer = make_optimizer(self.model, settings, device)
        self.runner = EpochRunner(
            self.model, self.optimizer, self.samples, settings, items
        )
        self.order = self.runner.shuffle(0)

    def run(self, step: int) -> Tensor:
        """The losses of the steps from `step` on: one on a CPU, all captured ones on a GPU."""
        return self.runner.run(self.order, step)


def epochs_of(run: Path) -> list[dict[str, Any]]:
    """The lines of the log of a training that are about an epoch."""
    text = (run / "log.jsonl").read_text(encoding="utf-8")
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if "loss" in line]
