"""What of the artifacts (artifacts.py) needs the run's model, and therefore torch: building them, and naming them where
the model is of the user's own code."""

import inspect
from functools import partial
from pathlib import Path

from torch import nn

from posrec.encodings.own import OwnEncoding
from posrec.io import scratch_folder, whole_file
from posrec.models.base import SessionModel
from posrec.recommend.item_vectors import ItemVectors, write_item_vectors
from posrec.recommend.onnx_export import export_onnx
from posrec.recommend.onnx_network import OWN_OUTPUTS, with_outputs
from posrec.recommend.torch_encoder import item_table, similarity_vectors
from posrec.run_folder import AnyRun


def build_onnx(run: AnyRun, path: Path) -> None:
    """The file has only the outputs that a search reads: it takes the products with the items itself."""
    with scratch_folder(path) as folder:
        export_onnx(run, folder / "whole.onnx")
        own = OWN_OUTPUTS if run.model.has_own_items else ()
        content = with_outputs(folder / "whole.onnx", ["session_vectors", *own])
    with whole_file(path, overwrite=True) as unfinished:
        unfinished.write_bytes(content)


def build_vectors(run: AnyRun, path: Path) -> None:
    write_item_vectors(path, item_table(run), similarity_vectors(run), run.model.has_own_items)


def vectors_of_model(run: AnyRun) -> ItemVectors:
    """The same without a file."""
    return ItemVectors(item_table(run), partial(similarity_vectors, run), run.model.has_own_items)


def is_network(run: AnyRun) -> bool:
    """Whether the run's model has session and item vectors; a counting model has none."""
    return isinstance(run.model, SessionModel)


def own_files(run: AnyRun) -> list[Path]:
    """The files with the code of the user's own that the run's model is built from."""
    encoding = getattr(run.model.config, "encoding", None)
    scheme = encoding.scheme if isinstance(encoding, OwnEncoding) else None
    parts = [type(run.model), type(scheme) if isinstance(scheme, nn.Module) else scheme]
    own = [one for one in parts if one is not None and not one.__module__.startswith("posrec.")]
    return [Path(file) for one in own if (file := inspect.getsourcefile(one)) is not None]
