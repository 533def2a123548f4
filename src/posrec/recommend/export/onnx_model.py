"""A model exported as an ONNX file, which is kept only if it gives the same scores as torch.

docs/files.md describes the file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.errors import InputError, RunFailed, first_line, imported, warnings_hidden
from posrec.io import whole_file
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.item_table import is_item
from posrec.nn.items.own_items import OwnItems
from posrec.recommend.rank.encoder import (
    LARGEST_ONNX_FILE,
    OWN_OUTPUTS,
    READ_VECTORS,
    OnnxModel,
    import_runtime,
)
from posrec.runs.folder import Run
from posrec.version import __version__

CLOSE = 1e-4  # the largest difference of a score, relative to it if it is above 1
DEFAULT_K = 20  # of the input `k`


class Exported(nn.Module):
    """items [B, L], lengths [B] -> session vectors [B, d], scores [B, n], fields of OwnItems; for a
    model with `click_vectors` also these and the known items, at which `with_outputs` cuts."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        own_outputs = OWN_OUTPUTS if model.has_own_items else ()
        self.outputs = ["session_vectors", "scores", *own_outputs]
        self.inner = []
        if model.click_vectors(torch.ones(1, 1, dtype=torch.int64)) is not None:
            self.inner = list(READ_VECTORS)

    def forward(self, items: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        read: tuple[Tensor, ...] = ()
        if self.inner:
            items = torch.where(is_item(items, self.model.items), items, 0)
            read = (items, self.model.click_vectors(items))
        longest = self.model.config.max_length
        batch = SessionBatch(items, lengths, longest=longest)
        if read:
            batch = replace(batch, vectors=read[1])
        vectors, own_items = self.model.sessions_and_own_items(batch)
        products = functional.linear(vectors, self.model.item_vectors())
        if own_items is None:
            return vectors, products, *read
        scores = own_items.log_chances_of_all(products)
        return vectors, scores, *vars(own_items).values(), *read


def export_onnx(run: Run, path: str | Path, overwrite: bool = False) -> float:
    """Write the run's model as an ONNX file; returns the difference of `checked_onnx`."""
    with whole_file(Path(path), overwrite) as unfinished:
        try:
            content, difference = checked_onnx(run)
        except RunFailed as error:
            raise RunFailed(f"{path} was not written: {error}") from error
        unfinished.write_bytes(content)
    return difference


def checked_onnx(run: Run) -> tuple[bytes, float]:
    """The content of the run's ONNX file, and the largest difference of its scores from torch's."""
    model: Any = run.model.cpu().eval()
    if not isinstance(model, SessionModel):
        raise InputError(
            f"{run.config['model']} is a counting model without a network to export; "
            "posrec score and serve need none"
        )
    if is_too_large(model):
        raise InputError(
            f"the model of {run.path} is larger than the 2 GB that an ONNX file can hold"
        )
    import_runtime()
    try:
        content = as_onnx(model, run)
        difference = largest_difference(model, OnnxModel(content, threads=1))
    except (InputError, OSError):
        raise
    except Exception as error:  # torch's and the runtime's errors have no common class
        name = run.config["model"]
        raise RunFailed(f"{name} can't be exported ({first_line(error)})") from error
    if not difference <= CLOSE:
        raise RunFailed(
            f"its scores differ from torch's by up to {difference:.2g}, more than {CLOSE:g}"
        )
    return content, difference


def is_too_large(model: nn.Module) -> bool:
    size: int = sum(tensor.nbytes for tensor in model.state_dict().values())
    return size > LARGEST_ONNX_FILE


def as_onnx(model: Any, run: Run) -> bytes:
    onnx = imported("onnx", "ONNX", "serve")
    longest = model.config.max_length
    # At least two sessions and two clicks: torch takes a dimension of size 1 as fixed.
    example = next(random_batches(model.items, longest, [(3, 3)]))
    # The exporter's warnings are for developers of torch.
    with warnings_hidden("torch"), torch.no_grad():
        exported = Exported(model).eval()
        proto = onnx.load_from_string(traced(exported, example))
    hide_outputs(proto, exported.inner)
    add_top(proto, min(DEFAULT_K, model.items))
    about = {
        "posrec": __version__,
        "model": run.config["model"],
        "items": str(model.items),
        "max_length": str(longest),
        "stride": str(model.stride),
    }
    onnx.helper.set_model_props(proto, about)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def traced(model: Exported, example: SessionBatch) -> bytes:
    """torch's export of one call takes a second. Its newer exporter takes fifteen, and unrolls
    recurrent layers for a fixed length."""
    file = BytesIO()
    outputs = [*model.outputs, *model.inner]
    axes = {name: {0: "batch"} for name in ("items", "lengths", *outputs)}
    for name in ("items", *model.inner):
        axes[name][1] = "length"
    # Folded constants would hold the item table a second time, transposed.
    torch.onnx.export(
        model,
        (example.items, example.lengths),
        cast(Any, file),
        dynamo=False,
        dynamic_axes=axes,
        opset_version=18,
        do_constant_folding=False,
        input_names=["items", "lengths"],
        output_names=outputs,
    )
    return file.getvalue()


def with_outputs(content: bytes, outputs: Sequence[str]) -> bytes:
    """The content of an ONNX file, reduced to what these outputs need. It reads the vectors of
    clicks in place of items where the model has them, so that items can be added to a run."""
    import onnx
    from onnx.utils import Extractor

    complete = onnx.load_from_string(content)
    names = {output for node in complete.graph.node for output in node.output}
    inputs = ["items"]
    if names.issuperset(READ_VECTORS):
        inputs = list(READ_VECTORS)
    reduced = Extractor(complete).extract_model([*inputs, "lengths"], list(outputs))
    reduced.metadata_props.extend(complete.metadata_props)
    return bytes(reduced.SerializeToString())


def hide_outputs(proto: Any, names: Sequence[str]) -> None:
    """They stay as names inside of the graph."""
    shown = [output for output in proto.graph.output if output.name not in names]
    hidden = [output for output in proto.graph.output if output.name in names]
    del proto.graph.output[:]
    proto.graph.output.extend(shown)
    proto.graph.value_info.extend(hidden)


def add_top(proto: Any, k: int) -> None:
    """Add the outputs `top_scores` and `top_items`; `k` becomes an input with a default."""
    from onnx import TensorProto, helper

    graph = proto.graph
    int64 = TensorProto.INT64
    value_info = helper.make_tensor_value_info
    graph.input.append(value_info("k", int64, [1]))
    graph.initializer.append(helper.make_tensor("k", int64, [1], [k]))
    graph.initializer.append(helper.make_tensor("one", int64, [], [1]))
    top = ["top_scores", "top_columns"]
    graph.node.append(helper.make_node("TopK", ["scores", "k"], top, axis=1))
    graph.node.append(helper.make_node("Add", ["top_columns", "one"], ["top_items"]))
    shape = ["batch", "best"]
    graph.output.append(value_info("top_scores", TensorProto.FLOAT, shape))
    graph.output.append(value_info("top_items", int64, shape))


@torch.inference_mode()
def largest_difference(model: Any, exported: OnnxModel) -> float:
    """Over sessions of many lengths, in batches of many sizes, with and without repeats; 1 if the
    top k differ."""
    longest = model.config.max_length
    differences = []
    sizes = [(1, 1), (1, longest), (2, 2), (5, 7), (32, longest)]
    k = min(3, model.items)
    for batch in random_batches(model.items, longest, sizes):
        ours = model.scores(batch)
        theirs = exported.scores(batch)
        differences.append(relative(ours, theirs))
        vectors = exported.session_vectors(batch)
        differences.append(float((vectors - model.session_vectors(batch)).abs().max()))
        if exported.has_own_items:
            # The outputs that a search reads give the same scores.
            own_items = OwnItems(*exported.run(batch, *OWN_OUTPUTS))
            products = vectors @ model.item_vectors().T
            differences.append(relative(ours, own_items.log_chances_of_all(products)))
        best, items = exported.top(batch, k)
        same_scores = torch.equal(best, theirs.topk(k).values)
        if not same_scores or not torch.equal(theirs.gather(1, items - 1), best):
            return 1.0
    return max(differences)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to a score if that is above 1."""
    return float(((ours - theirs).abs() / ours.abs().clamp(min=1)).max())


def random_batches(
    items: int, longest: int, sizes: list[tuple[int, int]]
) -> Iterator[SessionBatch]:
    """Batches of these numbers of sessions and of clicks, at most `longest`; every other session
    draws from three items only."""
    random = torch.Generator().manual_seed(0)
    for sessions, width in sizes:
        width = min(width, longest)
        lengths = torch.randint(1, width + 1, (sessions,), generator=random)
        lengths[0] = width
        is_even = torch.arange(sessions) % 2 == 0
        among = torch.where(is_even, items, min(3, items))[:, None]
        drawn = torch.randint(0, items, (sessions, width), generator=random) % among + 1
        is_click = torch.arange(width) < lengths[:, None]
        yield SessionBatch(torch.where(is_click, drawn, 0), lengths)
