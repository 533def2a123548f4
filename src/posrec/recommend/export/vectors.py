"""Item vectors for a vector database, with the encoder of sessions that fits them.

The product part of a score is `vector` of the item times `vector` of the session, plus `bias` of
the item (its trend). docs/recommending.md has an example.
"""

from pathlib import Path
from typing import Any

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.recommend.export.onnx_model import checked_onnx
from posrec.recommend.rank.torch_model import item_table
from posrec.runs.folder import Run


def export_vectors(run: Run, path: Path, overwrite: bool = False) -> Path:
    """Write the items in the order of their numbers, and the encoder; returns its path."""
    import polars as pl

    if path.suffix != ".parquet":
        raise InputError(f"--vectors {path}: the file is Parquet; name it .parquet")
    table = item_table(run)
    model: Any = run.model
    width = table.shape[1] - model.bias_columns
    encoder = path.with_suffix(".onnx")
    with whole_file(path, overwrite) as items, whole_file(encoder, overwrite) as onnx:
        content, _ = checked_onnx(run)
        onnx.write_bytes(session_encoder(content, width))
        vectors = pl.Series(table[:, :width], dtype=pl.Array(pl.Float32, width))
        ids = run.vocabulary.ids[: len(table)]
        bias = table[:, width:].sum(1)
        frame = pl.DataFrame({"id": ids, "vector": vectors, "bias": bias})
        frame.write_parquet(items)
    return encoder


def session_encoder(content: bytes, width: int) -> bytes:
    """Of the content of an ONNX file, with the one output `vector` [B, width]: session vectors
    without the ones at their end, whose products are `bias`."""
    from onnx import TensorProto, helper, load_from_string
    from onnx.utils import Extractor

    complete = load_from_string(content)
    inputs = ["items", "lengths"]
    proto = Extractor(complete).extract_model(inputs, ["session_vectors"])
    proto.metadata_props.extend(complete.metadata_props)
    graph = proto.graph
    limits = {"first_column": 0, "end_column": width, "column_axis": 1}
    for name, value in limits.items():
        limit = helper.make_tensor(name, TensorProto.INT64, [1], [value])
        graph.initializer.append(limit)
    inputs = ["session_vectors", *limits]
    graph.node.append(helper.make_node("Slice", inputs, ["vector"]))
    graph.output[0].name = "vector"
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = width
    return bytes(proto.SerializeToString())
