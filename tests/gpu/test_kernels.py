"""On a GPU: each kernel computes what its plain counterpart does. Skipped where there is none."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from posrec.kernels.limits import MANY_SESSIONS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FEW = [3, 1, 20, 7]  # rows of each session
# Short sessions and long ones have a launch each.
MANY = FEW * (MANY_SESSIONS // len(FEW))
SPARE = 9  # rows that belong to no session


@pytest.fixture(autouse=True)
def exact() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True)


def begins(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts], device="cuda").cumsum(0)


def gradients(output: Tensor, upstream: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output, inputs, upstream))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("longest", [1, 2, 20, 33, 200])
def test_distances(longest: int) -> None:
    """As on the CPU, for sessions with many repeats and with few."""
    from posrec.nn.graph import build_graph

    lengths = torch.randint(1, longest + 1, (300,))
    for choices in (2, longest // 2 + 1, 10 * longest):
        items = torch.randint(1, choices + 1, (300, longest))
        expected = build_graph(items, lengths).distances
        distances = build_graph(items.cuda(), lengths.cuda()).distances
        assert expected is not None
        assert distances is not None
        assert torch.equal(distances.cpu(), expected)


@pytest.mark.parametrize("counts", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "heads"), [(100, 2), (12, 1), (100, 10)])
def test_attention(d: int, heads: int, causal: bool, counts: list[int]) -> None:
    from posrec.kernels.attention import attention

    total = sum(counts)
    rows = random(total + SPARE, 3 * d)
    upstream = random(total + SPARE, d)
    bounds = begins(counts)
    options = (heads, max(counts), causal, 0.0)
    ours, _ = attention(*split(rows), None, bounds, bounds[:1], *options)
    sessions = []
    for session in rows[:total].split(counts):
        split_rows = session.view(len(session), 3, heads, -1)
        queries, keys, values = split_rows.permute(1, 2, 0, 3)
        logits = queries @ keys.mT / math.sqrt(d // heads)
        if causal:
            later = torch.ones_like(logits).triu(1).bool()
            logits = logits.masked_fill(later, -math.inf)
        sessions.append((logits.softmax(-1) @ values).transpose(0, 1).flatten(1))
    plain = torch.cat(sessions)
    assert close(ours[:total], plain)
    assert not ours[total:].any()
    (gradient,) = gradients(ours, upstream, rows)
    (expected,) = gradients(plain, upstream[:total], rows)
    assert close(gradient, expected)


def split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Q || K || V [T, 3d] -> Q, and K || V."""
    d = rows.shape[1] // 3
    return rows[:, :d], rows[:, d:]


@pytest.mark.parametrize(
    ("d", "heads", "longest"), [(200, 2, 50), (64, 4, 9), (16, 1, 50)]
)
def test_causal_attention_by_distance(
    d: int, heads: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A causal layer by the kernel and without it: values and all gradients, with unused rows and
    empty sessions."""
    from posrec.models import session_reader
    from posrec.models.clicks import PackedClicks
    from posrec.nn.packing import pack_many

    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    lengths = torch.randint(0, longest + 1, (40,), device="cuda")
    lengths[0] = longest
    rows = 40 * longest
    filled = torch.arange(longest, device="cuda") < lengths[:, None]
    (packing,) = pack_many(filled, rows, 40)
    clicks = PackedClicks(torch.randint(1, 6, (rows,), device="cuda"), packing)
    layer = session_reader.CausalLayer(d, heads, 4 * d).cuda()
    torch.nn.init.normal_(layer.same_item)
    x = torch.randn(rows, 2, d, device="cuda")
    y = torch.randn(rows, d, device="cuda")
    backward = torch.randn(longest, d, device="cuda")
    bias = torch.randn(heads, longest, device="cuda")
    inputs = [x, y, backward, bias]
    for tensor in inputs:
        tensor.requires_grad_()
    weights = [
        layer.same_item,
        *layer.queries_keys_values.parameters(),
        *layer.out.parameters(),
    ]
    used = packing.used[:, None, None]
    factor = torch.randn(rows, 2, d, device="cuda") * used
    outcomes = []
    for has_kernel in (True, False):
        if not has_kernel:
            monkeypatch.setattr(session_reader, "has_kernel", lambda *_: False)
        result = layer(x, layer.project(y, backward, bias), clicks) * used
        loss = (result * factor).sum()
        grads = torch.autograd.grad(loss, [*inputs, *weights])
        outcomes.append([result.detach(), *grads])
    for ours, theirs in zip(*outcomes, strict=True):
        assert (ours - theirs).norm() < 1e-4 * theirs.norm()


@pytest.mark.parametrize("counts", [FEW, MANY], ids=["few", "many"])
def test_dropout_of_attention_is_the_same_backward_and_averages_out(
    counts: list[int],
) -> None:
    from posrec.kernels.attention import attention

    rows = random(sum(counts), 300)
    seeds = torch.arange(300, device="cuda")[:, None]

    def attended(seed: Tensor, dropout: float) -> Tensor:
        options = (2, max(counts), False, dropout)
        return attention(*split(rows), None, begins(counts), seed, *options)[0]

    with torch.no_grad():
        outcomes = torch.stack([attended(seed, 0.3) for seed in seeds])
    without = attended(seeds[0], 0.0)
    assert not torch.equal(outcomes[0], outcomes[1])
    assert (outcomes.mean(0) - without).abs().mean() < 0.1 * without.abs().mean()
    # It is linear in the values, so the gradient of the values gives the outcome back if the mask
    # is the same.
    ours = attended(seeds[3], 0.3)
    upstream = random(sum(counts), 100)
    (gradient,) = gradients(ours, upstream, rows)
    back, forth = (
        torch.stack([session.sum() for session in product.split(counts)])
        for product in ((gradient * rows)[:, 200:], ours * upstream)
    )
    assert torch.allclose(back, forth, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("d", [16, 100, 200])
def test_smoothing(d: int) -> None:
    from posrec.kernels.smoothing import smooth

    rows = 50
    entries = torch.randint(0, 30, (50,))
    entries[3] = 0  # a row without neighbours
    row = torch.repeat_interleave(torch.arange(rows), entries)
    columns = torch.randint(rows, (len(row),))
    values = torch.rand(len(row))
    near = torch.zeros(rows, rows)
    near = near.index_put((row, columns), values, accumulate=True).cuda()
    table = torch.randn(rows, d, device="cuda")
    offsets = functional.pad(entries.cumsum(0), (1, 0))
    ours = smooth(table, 0.3, offsets.cuda(), columns.cuda(), values.cuda())
    assert close(ours, table + 0.3 * near @ table)


@pytest.mark.parametrize(
    ("batch", "items", "d"), [(100, 5000, 100), (3, 20, 16), (300, 779, 216)]
)
def test_cross_entropy(batch: int, items: int, d: int) -> None:
    """Factors are rounded to the ten bits of half precision."""
    from posrec.kernels.softmax import cross_entropy

    sessions = random(batch, d)
    table = (0.3 * torch.randn(items + 5, d, device="cuda")).requires_grad_()
    targets = torch.randint(items, (batch,), device="cuda")
    shares = torch.rand(batch, device="cuda") / batch
    shares[0] = 0
    ours = cross_entropy(sessions, table, targets, items)
    plain = functional.cross_entropy(
        sessions @ table[:items].T, targets, reduction="none"
    )
    assert torch.allclose(ours, plain, rtol=2e-3, atol=2e-3)
    for mine, theirs in zip(
        gradients(ours, shares, sessions, table),
        gradients(plain, shares, sessions, table),
        strict=True,
    ):
        assert (mine - theirs).norm() < 2e-3 * theirs.norm()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("chunk", [None, 300])
def test_softmax_without_a_kernel(chunk: int | None, bf16: bool) -> None:
    """In single precision, in bf16, and for catalogues whose scores are computed in chunks."""
    from posrec.training.softmax import softmax_loss

    batch = 50
    items = 779
    d = 64
    sessions = random(batch, d)
    table = (0.3 * torch.randn(items + 5, d, device="cuda")).requires_grad_()
    targets = torch.randint(1, items + 1, (batch,), device="cuda")
    shares = torch.rand(batch, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        ours = softmax_loss(items, chunk)(sessions, table, targets)
    plain = functional.cross_entropy(
        sessions @ table[:items].T, targets - 1, reduction="none"
    )
    tolerance = 1e-2 if bf16 else 1e-5
    assert (ours - plain).norm() < tolerance * plain.norm()
    for mine, theirs in zip(
        gradients(ours, shares, sessions, table),
        gradients(plain, shares, sessions, table),
        strict=True,
    ):
        assert (mine - theirs).norm() < tolerance * theirs.norm()
