"""A model exported as an ONNX file and run by ONNX Runtime: the same scores as torch, in less time.

docs/files.md describes the file. A model with a term for the session's own items has five more
outputs, the fields of `OwnItems`. A file is kept only if it gives the same scores as torch.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.errors import InputError, RunFailed, imported, warnings_hidden
from posrec.io import whole_file
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.own_items import OwnItems
from posrec.recommend.rank.encoder import (
    LARGEST_ONNX_FILE,
    OWN_OUTPUTS,
    OnnxModel,
    import_runtime,
)
from posrec.runs.folder import Run
from posrec.version import __version__

CLOSE = 1e-4  # the largest difference of a score, relative to it where it is above 1
K = 20  # the default of the input `k`


class Exported(nn.Module):
    """items [B, L], lengths [B] -> session vectors [B, d], scores [B, n], fields of OwnItems."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def outputs(self) -> list[str]:
        return [
            "session_vectors",
            "scores",
            *(OWN_OUTPUTS if self.model.has_own_items else ()),
        ]

    def forward(self, items: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        batch = SessionBatch(items, lengths, longest=self.model.config.max_length)
        vectors, own = self.model.sessions_and_own_items(batch)
        products = functional.linear(vectors, self.model.item_vectors())
        if own is None:
            return vectors, products
        return (
            vectors,
            own.log_chances_of_all(products),
            own.items,
            own.products,
            own.raised,
            own.repeat,
            own.explore,
        )


def export_onnx(run: Run, path: str | Path, overwrite: bool = False) -> float:
    """Write the run's model as an ONNX file. Returns the largest difference of its scores from
    torch's."""
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
            f"{run.config['model']} is a counting model without a network to export; posrec score and serve need none"
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
    except Exception as error:  # the errors of torch's exporter and of ONNX Runtime have no common class
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunFailed(f"{run.config['model']} can't be exported ({what})") from error
    if not difference <= CLOSE:
        raise RunFailed(
            f"its scores differ from torch's by up to {difference:.2g}, more than {CLOSE:g}"
        )
    return content, difference


def is_too_large(model: nn.Module) -> bool:
    size: int = sum(tensor.nbytes for tensor in model.state_dict().values())
    return size > LARGEST_ONNX_FILE


def as_onnx(model: Any, run: Run) -> bytes:
    """The file's content: torch's export, then the top k, and metadata about the model."""
    onnx = imported("onnx", "ONNX", "serve")
    longest = model.config.max_length
    # At least two sessions and two clicks: torch takes a dimension of size 1 as fixed.
    example = next(random_batches(model.items, longest, [(3, min(longest, 3))]))
    with (
        warnings_hidden("torch"),
        torch.no_grad(),
    ):  # those of the exporter are for developers of torch
        proto = onnx.load_from_string(traced(Exported(model).eval(), example))
    add_top(proto, min(K, model.items))
    about = {"posrec": __version__, "model": run.config["model"], "items": model.items}
    about |= {"max_length": longest, "stride": model.stride}
    onnx.helper.set_model_props(
        proto, {name: str(value) for name, value in about.items()}
    )
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def traced(model: Exported, example: SessionBatch) -> bytes:
    """torch's export of the operations of one call, which takes a second. Its newer exporter takes
    fifteen, and unrolls recurrent layers for a fixed length."""
    file = BytesIO()
    axes = {
        "items": {0: "batch", 1: "length"},
        **{name: {0: "batch"} for name in ("lengths", *model.outputs)},
    }
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
        output_names=model.outputs,
    )
    return file.getvalue()


def with_outputs(content: bytes, outputs: Sequence[str]) -> bytes:
    """The content of an ONNX file, reduced to what these outputs need."""
    import onnx
    from onnx.utils import Extractor

    whole = onnx.load_from_string(content)
    inputs = ["items", "lengths", *(["k"] if "top_items" in outputs else [])]
    part = Extractor(whole).extract_model(inputs, list(outputs))
    onnx.helper.set_model_props(
        part, {one.key: one.value for one in whole.metadata_props}
    )
    reduced: bytes = part.SerializeToString()
    return reduced


def add_top(proto: Any, k: int) -> None:
    """Add the outputs `top_scores` and `top_items`; `k` becomes an input with a default."""
    from onnx import TensorProto, helper

    graph = proto.graph
    graph.input.append(helper.make_tensor_value_info("k", TensorProto.INT64, [1]))
    graph.initializer.append(helper.make_tensor("k", TensorProto.INT64, [1], [k]))
    graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [], [1]))
    graph.node.append(
        helper.make_node("TopK", ["scores", "k"], ["top_scores", "top_columns"], axis=1)
    )
    graph.node.append(helper.make_node("Add", ["top_columns", "one"], ["top_items"]))
    graph.output.append(
        helper.make_tensor_value_info(
            "top_scores", TensorProto.FLOAT, ["batch", "best"]
        )
    )
    graph.output.append(
        helper.make_tensor_value_info("top_items", TensorProto.INT64, ["batch", "best"])
    )


@torch.inference_mode()
def largest_difference(model: Any, exported: OnnxModel) -> float:
    """Over sessions of many lengths, in batches of many sizes, with and without repeats; 1 where
    the top k differ."""
    longest = model.config.max_length
    worst = 0.0
    sizes = [
        (1, 1),
        (1, longest),
        (2, min(2, longest)),
        (5, min(7, longest)),
        (32, longest),
    ]
    for batch in random_batches(model.items, longest, sizes):
        ours = model.scores(batch)
        theirs = exported.scores(batch)
        worst = max(worst, relative(ours, theirs))
        vectors = exported.session_vectors(batch)
        worst = max(worst, float((vectors - model.session_vectors(batch)).abs().max()))
        if (
            exported.has_own_items
        ):  # the outputs that a search reads give the same scores
            own = OwnItems(*exported.run(batch, *OWN_OUTPUTS))
            worst = max(
                worst,
                relative(
                    ours, own.log_chances_of_all(vectors @ model.item_vectors().T)
                ),
            )
        k = min(3, model.items)
        best, items = exported.top(batch, k)
        if not (
            torch.equal(best, theirs.topk(k).values)
            and torch.equal(theirs.gather(1, items - 1), best)
        ):
            return 1.0
    return worst


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to a score where that is above 1."""
    return float(((ours - theirs).abs() / ours.abs().clamp(min=1)).max())


def random_batches(
    items: int, longest: int, sizes: list[tuple[int, int]]
) -> Iterator[SessionBatch]:
    """Batches of the given numbers of sessions and clicks; every other session draws from three
    items only."""
    random = torch.Generator().manual_seed(0)
    for sessions, width in sizes:
        lengths = torch.randint(1, width + 1, (sessions,), generator=random)
        lengths[0] = width
        among = torch.where(torch.arange(sessions) % 2 == 0, items, min(3, items))[
            :, None
        ]
        drawn = torch.randint(0, items, (sessions, width), generator=random) % among + 1
        yield SessionBatch(
            torch.where(torch.arange(width) < lengths[:, None], drawn, 0), lengths
        )
