"""The table of an encoding: its value at every position of every length, which the analysis and the theory examine."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import ENCODINGS, LEARNED, THEORY_ONLY, Scheme, make_encoding

ROUNDING_UNITS = 64


@dataclass(frozen=True)
class PositionPair:
    """Two positions, each of a session of some length, and the values of the encoding there in some dimensions."""

    positions: tuple[int, int]
    lengths: tuple[int, int]
    dimensions: tuple[int, ...]
    values: tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class EncodingTable:
    """One row for every (position, length) up to max_length, in order of length and then of position."""

    rows: Tensor  # [N, d] float64, each dimension divided by its largest value
    scale: Tensor  # [d]
    position: Tensor  # [N]
    length: Tensor  # [N]
    tolerance: float

    def pair(self, first: int, second: int, dimensions: Tensor) -> PositionPair:
        values = [tuple((self.rows[row] * self.scale)[dimensions].tolist()) for row in (first, second)]
        return PositionPair(
            positions=(int(self.position[first]), int(self.position[second])),
            lengths=(int(self.length[first]), int(self.length[second])),
            dimensions=tuple(dimensions.nonzero().flatten().tolist()),
            values=(values[0], values[1]),
        )

    def sessions(self) -> list[Tensor]:
        """The rows of each length: one tensor of row numbers for length 1, 2, ..."""
        # Length l begins after 1 + 2 + .. + (l-1) rows.
        starts = [(length, length * (length - 1) // 2) for length in range(1, int(self.length[-1]) + 1)]
        return [torch.arange(start, start + length) for length, start in starts]


def examined_names() -> tuple[str, ...]:
    """Every name that `analyse` accepts: the schemes that a model can use, and those of the theory alone."""
    return (*ENCODINGS, *THEORY_ONLY)


def build(scheme: str | nn.Module | type[nn.Module] | Scheme, max_length: int, d: int) -> nn.Module:
    """The scheme as a float64 module. A learned scheme asked for by name gets a random table (seed 0)."""
    if isinstance(scheme, str) and scheme in THEORY_ONLY:
        return THEORY_ONLY[scheme](d, max_length).double()
    if not isinstance(scheme, str):
        return copy.deepcopy(make_encoding(scheme, d, max_length)).double().cpu().eval()
    module = make_encoding(scheme, d, max_length).double()
    if scheme in LEARNED:
        nn.init.normal_(module.get_parameter("table"), generator=torch.Generator().manual_seed(0))
    return module


@torch.no_grad()
def tabulate(scheme: nn.Module, max_length: int) -> EncodingTable:
    """Call the scheme as a model would, on one whole session of each length."""
    encoded, positions, lengths = [], [], []
    with double_precision():
        for length in range(1, max_length + 1):
            forward = torch.arange(length).unsqueeze(0)
            encoded.append(scheme(forward, length - 1 - forward, torch.tensor([length]))[0])
            positions.append(forward[0])
            lengths.append(torch.full((length,), length))
    rows = torch.cat(encoded)
    if not torch.isfinite(rows).all():
        raise ValueError("the encoding gave a value that is not finite")
    tolerance = ROUNDING_UNITS * torch.finfo(rows.dtype).eps
    largest = rows.double().abs().amax(0)
    # A dimension that holds only the rounding noise of the others must count as zero, not be scaled up.
    overall = float(largest.max()) or 1.0
    scale = torch.where(largest > tolerance * overall, largest, overall)
    return EncodingTable(rows.double() / scale, scale, torch.cat(positions), torch.cat(lengths), tolerance)


@contextmanager
def double_precision() -> Iterator[None]:
    """Quotients of integers, such as positions, are in double precision, as the weights of a scheme are here."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: distributing many small operations over threads takes longer than it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
