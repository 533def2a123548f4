"""safetensors files that are written and read some rows at a time."""

from pathlib import Path

import pytest
import torch

from posrec.io import load_tensors
from posrec.io.files import write_tensors
from posrec.training.distributed.files import load_together
from posrec.training.distributed.world import World


def test_tensors_are_written_and_read_by_rows(tmp_path: Path) -> None:
    path, table = tmp_path / "some.safetensors", torch.arange(12.0).view(4, 3)
    kinds = {"step": (torch.float32, ()), "table": (torch.float32, (4, 3)), "small": (torch.uint8, (3,))}
    blocks = [torch.tensor(7.0), table[:1], table[1:], torch.tensor([1, 2, 3], dtype=torch.uint8)]
    write_tensors(path, kinds, blocks, {"epoch": 2})
    found, about = load_tensors(path)
    assert about == {"epoch": 2}
    assert torch.equal(found["table"], table)
    assert (found["step"].item(), found["small"].tolist()) == (7.0, [1, 2, 3])
    part = torch.zeros(4, 3)
    load_together(path, {"table": part}, {}, World())
    assert torch.equal(part, table)


def test_a_file_with_too_few_rows_does_not_get_its_name(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    with pytest.raises(ValueError, match="its header announces 48"):
        write_tensors(path, {"table": (torch.float32, (4, 3))}, [torch.zeros(3, 3)], {})
    assert list(tmp_path.iterdir()) == []
