"""Who holds which rows, and what several processes can't do together: it is refused before one waits for another."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.fitting.fit import fit_run
from posrec.models.base import SessionModel
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch
from posrec.training.distributed.rows import ShardedRows
from posrec.training.distributed.world import World, joined

FIRST_OF_TWO = World(0, 2)


@dataclass(frozen=True)
class PlainConfig:
    d: int = 4
    max_length: int = 5


class WithoutItemTable(SessionModel):
    def __init__(self, items: int, config: PlainConfig) -> None:
        super().__init__(items, config)
        self.weight = nn.Parameter(torch.zeros(items, config.d))

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.weight[batch.items[:, 0] - 1]

    def item_vectors(self) -> Tensor:
        return self.weight


def refused(data: PreparedDataset, out: Path, model: str | ModelSpec, **options: object) -> str:
    with pytest.raises(InputError) as error:
        fit_run(data, model, out, {}, "cpu", world=FIRST_OF_TWO, **options)  # type: ignore[arg-type]
    assert not out.exists()
    return str(error.value)


def test_a_model_that_counts(small: PreparedDataset, tmp_path: Path) -> None:
    assert "pop counts the sessions in one process" in refused(small, tmp_path / "run", "pop")


def test_a_model_without_an_item_table(small: PreparedDataset, tmp_path: Path) -> None:
    spec = ModelSpec(WithoutItemTable, PlainConfig, "weights of its own")
    assert "WithoutItemTable has no posrec.ItemTable" in refused(small, tmp_path / "run", spec)


def test_a_warm_start(small: PreparedDataset, tmp_path: Path) -> None:
    assert "--from reads whole item tables" in refused(small, tmp_path / "run", "posrec", start_from=tmp_path / "other")


def test_more_processes_than_blocks_of_rows() -> None:
    assert len(ShardedRows(9, FIRST_OF_TWO)) == 8
    with pytest.raises(ValueError, match="8 items are too few for 2 processes; start at most 1"):
        ShardedRows(8, FIRST_OF_TWO)


def test_every_row_has_one_owner() -> None:
    for size in (1, 2, 3, 5):
        parts = [ShardedRows(45, World(rank, size)) for rank in range(size)]
        rows = torch.arange(48)
        assert [row for part in parts for row in range(part.start, part.end)] == rows.tolist()
        assert sum(part.items_here for part in parts) == 45
        for rank, part in enumerate(parts):
            assert (parts[0].owners(rows) == rank).nonzero()[:, 0].tolist() == list(range(part.start, part.end))
            assert part.local(rows)[part.start : part.end].tolist() == list(range(len(part)))


def test_a_process_that_was_started_alone_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with joined("cpu") as world:
        assert world == World(rank=0, size=1)
