"""safetensors files that are written and read some rows at a time."""

from pathlib import Path

import pytest
import torch

from posrec.io import load_tensors
from posrec.io.tensor_stream import TensorReader, tensor_writer


def test_tensors_are_written_and_read_by_rows(tmp_path: Path) -> None:
    path, table = tmp_path / "some.safetensors", torch.arange(12.0).view(4, 3)
    kinds = {"small": (torch.uint8, (3,)), "table": (torch.float32, (4, 3)), "step": (torch.float32, ())}
    with tensor_writer(path, kinds, {"epoch": 2}) as write:
        write(torch.tensor(7.0))
        write(table[:1])
        write(table[1:])
        write(torch.tensor([1, 2, 3], dtype=torch.uint8))
    found, about = load_tensors(path)
    assert about == {"epoch": 2}
    assert torch.equal(found["table"], table)
    assert (found["step"].item(), found["small"].tolist()) == (7.0, [1, 2, 3])
    with TensorReader(path) as reader:
        assert reader.shape("table") == [4, 3]
        assert torch.equal(reader.rows("table", 1, 3), table[1:3])


def test_a_file_with_too_few_rows_does_not_get_its_name(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    with (
        pytest.raises(ValueError, match="its header announces 48"),
        tensor_writer(path, {"table": (torch.float32, (4, 3))}, {}) as write,
    ):
        write(torch.zeros(3, 3))
    assert list(tmp_path.iterdir()) == []
