"""Item vectors for a vector database, with the encoder of sessions that fits them.

The product part of a score is `vector` of the item times `vector` of the session, plus `bias` of
the item, such as its trend. docs/recommending.md has an example.
"""

from pathlib import Path
from typing import Any

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.recommend.export.onnx_model import checked_onnx
from posrec.recommend.rank.torch_model import item_table
from posrec.runs.folder import Run


def export_vectors(run: Run, path: Path, overwrite: bool = False) -> Path:
    """Write the items in the order of their numbers, and beside them the encoder; returns its
    path."""
    import polars as pl

    if path.suffix != ".parquet":
        raise InputError(f"--vectors {path}: the file is Parquet; name it .parquet")
    table = item_table(run)
    model: Any = run.model
    width = table.shape[1] - model.bias_columns
    encoder = path.with_suffix(".onnx")
    with (
        whole_file(path, overwrite) as unfinished,
        whole_file(encoder, overwrite) as unfinished_encoder,
    ):
        content, _ = checked_onnx(run)
        unfinished_encoder.write_bytes(session_encoder(content, width))
        vectors = pl.Series(table[:, :width], dtype=pl.Array(pl.Float32, width))
        ids = run.vocabulary.ids[: len(table)]
        bias = table[:, width:].sum(1)
        frame = pl.DataFrame({"id": ids, "vector": vectors, "bias": bias})
        frame.write_parquet(unfinished)
    return encoder


def session_encoder(content: bytes, width: int) -> bytes:
    """Of the content of an ONNX file, with the one output `vector` [B, width]: session vectors
    without the columns of ones at their end, whose products are `bias`."""
    import onnx
    from onnx import TensorProto, helper
    from onnx.utils import Extractor

    complete = onnx.load_from_string(content)
    inputs = ["items", "lengths"]
    proto = Extractor(complete).extract_model(inputs, ["session_vectors"])
    proto.metadata_props.extend(complete.metadata_props)
    graph = proto.graph
    limits = {"first_column": 0, "end_column": width, "column_axis": 1}
    for name, value in limits.items():
        graph.initializer.append(
            helper.make_tensor(name, TensorProto.INT64, [1], [value])
        )
    cut = helper.make_node("Slice", ["session_vectors", *limits], ["vector"])
    graph.node.append(cut)
    shape: list[str | int | None] = ["batch", width]
    del graph.output[:]
    graph.output.append(
        helper.make_tensor_value_info("vector", TensorProto.FLOAT, shape)
    )
    return bytes(proto.SerializeToString())
